"""The report command: one page that says where training's time went."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fusionloader.cli.drawn_report.page import report_page
from fusionloader.cli.progress import elapsed
from fusionloader.observe.trace.files import read_timeline


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("trace", type=Path, help="what loader.trace(...) has written")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("report.html"), help="the page (report.html)"
    )


def run(options: argparse.Namespace) -> int:
    """Writes the page; returns 2 if there is nothing to report, or nowhere to write it."""
    try:
        with elapsed(f"reading {options.trace.name}"):
            page = report_page(read_timeline(options.trace), options.trace.name)
        options.output.write_text(page, encoding="utf-8")
    except (OSError, ImportError, ValueError) as error:
        print(f"fusionloader report: {error}", file=sys.stderr)
        return 2
    print(f"written to {options.output} ({len(page.encode()) / 1e6:.1f} MB); open it in a browser")
    return 0

"""The doctor command: what this machine has for a data loader, and what to change."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("--data", type=Path, metavar="DIR", help="measure how fast this is read")
    parser.add_argument("--json", action="store_true", help="print a list for programs")
    parser.add_argument("--quick", action="store_true", help="measure nothing")


def run(options: argparse.Namespace) -> int:
    """Prints a line for each check; returns 1 if one fails, 2 without that folder."""
    from fusionloader.cli.doctor.examination import examine
    from fusionloader.cli.doctor.report import as_json, exit_status, line_of, summary

    if options.data is not None and not options.data.is_dir():
        print(f"doctor: {options.data} is no folder; name one with your images", file=sys.stderr)
        return 2
    checks = []
    for check in examine(options.data, measure=not options.quick):
        checks.append(check)
        if not options.json:
            print(line_of(check), flush=True)
    print(as_json(checks) if options.json else f"\n{summary(checks)}")
    return exit_status(checks)

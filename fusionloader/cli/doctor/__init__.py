"""The doctor command: what this machine has for a data loader, and what to change."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("--data", type=Path, metavar="DIR", help="measure how fast this is read")
    parser.add_argument("--json", action="store_true", help="print a list for programs")
    parser.add_argument(
        "--remote",
        nargs="*",
        metavar="HOST:PORT",
        help="have remote workers prepare a few images: those at these addresses, or those that "
        "Ray starts (auto, or nothing)",
    )
    parser.add_argument(
        "--token-file", metavar="FILE", help="what these workers were given; by default the user's"
    )
    parser.add_argument("--quick", action="store_true", help="measure nothing")


def run(options: argparse.Namespace) -> int:
    """Prints a line for each check; returns 1 if one fails, 2 without that folder."""
    from fusionloader.cli.doctor.examination import RemoteTargets, examine
    from fusionloader.cli.doctor.report import as_json, exit_status, line_of, summary

    if options.data is not None and not options.data.is_dir():
        print(f"doctor: {options.data} is no folder; name one with your images", file=sys.stderr)
        return 2
    checks = []
    remote = None if options.remote is None else RemoteTargets(options.remote, options.token_file)
    for check in examine(options.data, remote, measure=not options.quick):
        checks.append(check)
        if not options.json:
            print(line_of(check), flush=True)
    print(as_json(checks) if options.json else f"\n{summary(checks)}")
    return exit_status(checks)

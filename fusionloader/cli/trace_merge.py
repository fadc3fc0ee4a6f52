"""``fusionloader trace-merge``: a loader's trace and torch.profiler's as one, by their clocks."""

from __future__ import annotations

import argparse
import sys

from fusionloader.cli.progress import elapsed
from fusionloader.observe.trace.errors import TraceError
from fusionloader.observe.trace.merge import merge_traces


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "traces", nargs="+", help=".json or .json.gz, of loaders and torch.profiler"
    )
    parser.add_argument("-o", "--output", required=True, help="the merged trace, .json or .json.gz")


def run(options: argparse.Namespace) -> int:
    """Merges; returns 1 where a file cannot be read or written."""
    try:
        with elapsed("merging"):
            counts = merge_traces(options.traces, options.output)
    except (TraceError, OSError) as error:
        print(f"fusionloader trace-merge: {error}", file=sys.stderr)
        return 1
    for path, events in counts.items():
        print(f"{events:9,} events of {path}")
    print(f"{options.output}: open it in https://ui.perfetto.dev")
    return 0

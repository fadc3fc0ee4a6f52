"""Builds the library by which the installed DALI allocates in memory that training lends."""

from __future__ import annotations

import argparse
import sys

from fusionloader.executors.dali.memory.resource_library import CannotBuildError, build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has no options: CXX and CUDA_HOME say which compiler and which headers."""


def run(options: argparse.Namespace) -> int:
    """Builds it for the installed version; 1 if something is missing for that."""
    try:
        library = build()
    except CannotBuildError as error:
        print(f"not built: {error}", file=sys.stderr)
        return 1
    print(f"built {library}")
    print('GPU workers use it where they borrow memory (GpuWorker(memory="share" or "auto")).')
    return 0

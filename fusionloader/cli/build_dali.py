"""The build-dali command: the library by which the installed DALI allocates in lent memory."""

from __future__ import annotations

import argparse
import sys

from fusionloader.cli.progress import elapsed
from fusionloader.transforms.executors.dali.memory.resource_library import CannotBuildError, build


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds none: CXX and CUDA_HOME select the compiler and the headers."""


def run(options: argparse.Namespace) -> int:
    """Builds it for the installed version; returns 1 if that is not possible."""
    try:
        with elapsed("compiling"):
            library = build()
    except CannotBuildError as error:
        print(f"not built: {error}", file=sys.stderr)
        return 1
    print(f"built {library}")
    print('GPU workers use it where they borrow memory (GpuWorker(memory="share" or "auto")).')
    return 0

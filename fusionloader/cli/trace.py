"""The trace command: runs a training script, and records what its loaders do."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

from fusionloader.cli.analysis import scripts
from fusionloader.cli.analysis.errors import AnalysisError
from fusionloader.cli.analysis.session import find_place, likeness
from fusionloader.cli.counts import at_least
from fusionloader.loader import FusionLoader
from fusionloader.observe.statistics.loader_statistics import describe_samples
from fusionloader.observe.trace.files import TraceFile
from fusionloader.observe.trace.recording import Trace

_OUTPUT = Path("trace.json.gz")  # a format that needs no further package


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        help="MODULE [ARGUMENTS]: run a module, as python -m",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        help=".pftrace, .perfetto-trace, .json or .json.gz; may also stand directly behind the "
        f"script or module ({_OUTPUT})",
    )
    parser.add_argument(
        "--steps", type=at_least(1), help="trace so many batches of each loader (all)"
    )
    parser.add_argument(
        "training",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT [ARGUMENTS]",
        help="the script that trains, and its arguments",
    )


def run(options: argparse.Namespace) -> int:
    """Runs the script, whose exceptions and exit status are raised; returns 2 without a trace."""
    rest = options.module or options.training
    if options.output is None and rest[1:2] in (["-o"], ["--output"]):
        options.output = Path(*rest[2:3])
        del rest[1:3]
    output = options.output or _OUTPUT
    try:
        training = _training(options)
        TraceFile(output)  # fails now rather than after the first epoch
    except (AnalysisError, ImportError, OSError, ValueError) as error:
        print(f"fusionloader trace: {error}", file=sys.stderr)
        return 2
    loaders = _TracedLoaders(output, options.steps)
    with loaders.traced():
        training()
    return 0 if loaders.traces else 2


def _training(options: argparse.Namespace) -> scripts.Training:
    rest = options.training
    if options.module:
        return scripts.module(options.module[0], options.module[1:])
    if not rest:
        raise AnalysisError("give a script that trains")
    return scripts.script(rest[0], rest[1:])


class _TracedLoaders:
    """Starts a trace at the first ``iter()`` of each loader, in the process that made it.

    Of loaders that a script makes anew for each epoch the first one is traced.
    """

    def __init__(self, output: Path, steps: int | None) -> None:
        self._output, self._steps, self._process = output, steps, os.getpid()
        self._seen: WeakSet[FusionLoader[Any]] = WeakSet()
        self._made_again: dict[object, int] = {}
        self.traces: dict[object, tuple[str, Trace]] = {}

    @contextlib.contextmanager
    def traced(self) -> Iterator[None]:
        """A run of the script; at its end traces are written."""
        before = FusionLoader.__iter__

        @functools.wraps(before)
        def iterated(loader: FusionLoader[Any]) -> Any:
            if os.getpid() == self._process and loader not in self._seen:
                self._seen.add(loader)
                self._begin(loader, find_place(sys._getframe(1)))
            return before(loader)

        FusionLoader.__iter__ = iterated  # type: ignore[method-assign]
        try:
            yield
        finally:
            FusionLoader.__iter__ = before  # type: ignore[method-assign]
            if os.getpid() == self._process:
                self._end()

    def _begin(self, loader: FusionLoader[Any], place: str) -> None:
        key = place, likeness(loader)
        if key in self.traces:
            self._made_again[key] = self._made_again.get(key, 0) + 1
            return
        path = self._output
        if self.traces:
            stem, dot, suffixes = path.name.partition(".")
            path = path.with_name(f"{stem}-{len(self.traces) + 1}{dot}{suffixes}")
        name = f"{describe_samples(loader.dataset)} at {place}"
        self.traces[key] = name, loader.trace(path, self._steps)

    def _end(self) -> None:
        for key, (name, trace) in self.traces.items():
            try:
                trace.stop()
            except OSError as error:
                print(f"fusionloader trace: a trace is lost: {error}", file=sys.stderr)
                continue
            steps = len(trace.recorder.steps)
            print(f"{trace.path}: {steps:,} steps of {name}", file=sys.stderr)
            if again := self._made_again.get(key):
                print(f"not traced: {again:,} loaders like it, made later", file=sys.stderr)
        if self.traces:
            print(f"next: python -m fusionloader report {self._output}", file=sys.stderr)
        else:
            self._output.unlink(missing_ok=True)
            print("fusionloader trace: no FusionLoader was iterated", file=sys.stderr)

"""What is analyzed: a script, a module, or a loader and a step of training."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from fusionloader.cli.analysis.errors import AnalysisError

Training = Callable[[], None]
"""Runs the training that is analyzed, from its start."""

_MOST_EPOCHS = 1000


def script(path: str, arguments: Sequence[str]) -> Training:
    """Returns a training: a Python file, run as ``python path arguments`` would.

    Raises:
        AnalysisError: there is no such file.
    """
    if not Path(path).is_file():
        raise AnalysisError(f"there is no script {path}: give the file that trains")

    def run() -> None:
        with _as_main([path, *arguments], str(Path(path).resolve().parent)):
            runpy.run_path(path, run_name="__main__")

    return run


def module(name: str, arguments: Sequence[str]) -> Training:
    """Returns a training: a module, run as ``python -m name arguments`` would.

    Raises:
        AnalysisError: there is no such module.
    """
    _look_here()
    try:
        found = importlib.util.find_spec(name)
    except ImportError:  # of the package that it is in
        found = None
    if found is None:
        raise AnalysisError(f"there is no module {name}: give what python -m takes")

    def run() -> None:
        with _as_main([name, *arguments], os.getcwd()):
            runpy.run_module(name, run_name="__main__", alter_sys=True)

    return run


@contextlib.contextmanager
def _as_main(arguments: list[str], folder: str) -> Iterator[None]:
    argv, path, main = sys.argv, list(sys.path), sys.modules["__main__"]
    sys.argv = arguments
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path
        sys.modules["__main__"] = main


def loop(loader_spec: str, step_spec: str) -> Training:
    """Returns a training: epoch after epoch of a loader, a call of a function for each batch.

    Args:
        loader_spec: ``module:factory``, where ``factory()`` returns a loader.
        step_spec: ``module:function``, where ``function(batch)`` is a step of training.

    Raises:
        AnalysisError: one of them does not import.
    """
    factory, step = _imported(loader_spec, "--loader"), _imported(step_spec, "--step")

    def run() -> None:
        loader = factory()
        if not isinstance(loader, DataLoader):
            raise AnalysisError(
                f"--loader {loader_spec}() returned a {type(loader).__name__}: it should return "
                "a FusionLoader or a torch DataLoader"
            )
        for _ in range(_MOST_EPOCHS):
            for batch in loader:
                step(batch)

    return run


def _imported(spec: str, option: str) -> Callable[..., Any]:
    name, colon, attribute = spec.partition(":")
    if not (name and colon and attribute):
        raise AnalysisError(f'{option} is written as module:function, not "{spec}"')
    _look_here()
    try:
        found: Any = importlib.import_module(name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise AnalysisError(f"{option} {spec} cannot be imported: {error}") from error
    if not callable(found):
        raise AnalysisError(f"{option} {spec} is a {type(found).__name__}, and cannot be called")
    return found  # type: ignore[no-any-return]


def _look_here() -> None:
    """Finds modules in the current folder, as ``python -m`` does and an installed command not."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())

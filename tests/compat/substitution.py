"""Puts FusionLoader in the place of the class that a suite tests, in every process it starts.

``sitecustomize`` of those processes calls ``install``; see ``suite_run.py``. It is a plugin of
pytest, too, which writes what becomes of each test. Both write lines of JSON to a file that
``COMPLIANCE_EVENTS`` names.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.util
import json
import multiprocessing
import os
import sys
import time
from typing import Any

import pytest

# Where a suite finds the class under test.
PLACES = {
    "torch": ("torch.utils.data", "DataLoader"),
    "stateful": ("torchdata.stateful_dataloader", "StatefulDataLoader"),
}


def write(**event: Any) -> None:
    """Appends an event; the file is opened each time, since some tests count descriptors."""
    try:
        fd = os.open(os.environ["COMPLIANCE_EVENTS"], os.O_WRONLY | os.O_APPEND)
    except OSError:  # in the test that uses up all descriptors
        return
    os.write(fd, (json.dumps(event) + "\n").encode())
    os.close(fd)


# ---- in every process ---------------------------------------------------------------------------


class Substitution(importlib.abc.MetaPathFinder):
    """Replaces the class as soon as its module has been imported."""

    def __init__(self, suite: str, ours: bool) -> None:
        self._module, self._name = PLACES[suite]
        self._ours = ours

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != self._module:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)  # by the finders behind this one
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            execute(module)
            if self._ours:
                _hide(module, self._name)
            else:
                _note_iterators(getattr(module, self._name))

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _hide(module: Any, name: str) -> None:
    """Shows FusionLoader in the place of a class to everybody but FusionLoader and torch.

    Whoever asks first imports it: when the module itself is imported, torch is not there yet, or
    FusionLoader is what imports it.
    """
    original = module.__dict__.pop(name)

    class Module(type(module)):  # type: ignore[misc]
        def __getattr__(self, wanted: str) -> Any:
            if wanted != name:
                raise AttributeError(f"module {module.__name__!r} has no attribute {wanted!r}")
            return (
                original
                if _asking(sys._getframe(1)) in ("fusionloader", "torch", "torchdata")
                else _ours(name)
            )

    module.__class__ = Module


def _asking(frame: Any) -> str:
    """Returns the package that asks for an attribute, also by way of an import."""
    package = "importlib"
    while frame is not None and package in ("importlib", "_frozen_importlib"):
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        frame = frame.f_back
    return package


@functools.cache
def _ours(name: str) -> Any:
    kind = _accepting(importlib.import_module("fusionloader.loader").FusionLoader, name)
    _note_iterators(kind)
    return kind


def install() -> None:
    """Lets this process replace the class before anybody can see it."""
    suite = os.environ["COMPLIANCE_SUITE"]
    sys.meta_path.insert(0, Substitution(suite, os.environ["COMPLIANCE_CLASS"] == "ours"))


def _accepting(kind: Any, name: str) -> Any:
    """Returns the class as the suite calls it: torchdata's has an argument more."""
    if name == "DataLoader":
        return kind
    init = kind.__init__

    @functools.wraps(init)
    def without_snapshots(self: Any, *args: Any, **options: Any) -> None:
        options.pop("snapshot_every_n_steps", None)
        init(self, *args, **options)

    kind.__init__ = without_snapshots
    return kind


def _note_iterators(kind: Any) -> None:
    iterate = kind.__iter__

    @functools.wraps(iterate)
    def noted(self: Any) -> Any:
        iterator = iterate(self)
        served_by = f"{type(iterator).__module__}.{type(iterator).__qualname__}"
        write(test=_current_test(), iterator=served_by)
        return iterator

    kind.__iter__ = noted


def _current_test() -> str:
    return os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]


# ---- as a plugin of pytest ----------------------------------------------------------------------


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what earlier runs of pytest have done."""
    module, name = PLACES[os.environ["COMPLIANCE_SUITE"]]
    shown = getattr(importlib.import_module(module), name).__name__
    if (shown == "FusionLoader") != (os.environ["COMPLIANCE_CLASS"] == "ours"):
        raise pytest.UsageError(f"the class under test is {shown}")
    done = set(os.environ["COMPLIANCE_DONE"].split("\n"))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = [item for item in items if item.nodeid not in done]


def pytest_runtest_logstart(nodeid: str) -> None:
    """One test sets the start method for good; it is not to decide on those after it."""
    method = os.environ["COMPLIANCE_START_METHOD"]
    multiprocessing.set_start_method(method, force=True)
    if method == "forkserver":
        # What most suites import; or every worker of either class takes seconds of CPU time to.
        multiprocessing.set_forkserver_preload(["torch.testing._internal.common_device_type"])
    write(test=nodeid, begins=time.time())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        lines = [line.strip() for line in str(report.longrepr or "").splitlines() if line.strip()]
        seconds = round(report.duration, 2)
        said = " / ".join(line[:160] for line in lines[-2:])
        write(test=report.nodeid, outcome=report.outcome, seconds=seconds, said=said)


def pytest_runtest_logfinish(nodeid: str) -> None:
    write(test=nodeid, ends=True)

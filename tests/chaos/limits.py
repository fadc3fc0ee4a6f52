"""Limits of deaths that the campaign lifts: many processes may die in a row, or at one sample.

The loader takes such deaths for an error of the user's code. Random kills come to that.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from fusionloader.system.processes import BareProcess

LIMITS = {
    "fusionloader.data.read_ahead.read_ahead_process": "_FRUITLESS_DEATHS",
    "fusionloader.engine.manager.publications": "MOST_DEATHS",
    "fusionloader.sharing.remote.remote_proxy": "_FRUITLESS_DEATHS",
    "fusionloader.workers.worker_set": "_FRUITLESS_DEATHS",
}
_MANY = 1 << 30


class _Argument:
    """The argument of a bare interpreter, which lifts its limits when it unpickles it."""

    def __init__(self, argument: Any) -> None:
        self._argument = argument

    def __reduce__(self) -> tuple[Any, ...]:
        return unpickled, (self._argument,)


def unpickled(argument: Any) -> Any:
    """Lifts the limits of the modules that this process has imported; returns the argument."""
    for module, name in LIMITS.items():
        if module in sys.modules:
            setattr(sys.modules[module], name, _MANY)
    return argument


def lift() -> None:
    """Lifts the limits in this process, and in the bare interpreters that it starts from now on."""
    for module, name in LIMITS.items():
        assert hasattr(importlib.import_module(module), name), f"{module} has no {name} any more"
    unpickled(None)
    begin = BareProcess.__init__

    def start(self: BareProcess, module: str, argument: object, *rest: Any, **named: Any) -> None:
        begin(self, module, _Argument(argument), *rest, **named)

    BareProcess.__init__ = start  # type: ignore[method-assign]

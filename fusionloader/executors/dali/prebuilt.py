"""Prebuilt pipelines, which can be dropped with their memory and are built again when needed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class Prebuilt:
    """A DALI pipeline that is there whenever it is run."""

    def __init__(self, define: Callable[[], Any]) -> None:
        """Calls ``define`` for the graph, now and after each drop; building it needs the device."""
        self._define = define
        self._pipeline: Any = define()
        _all.add(self)

    def build(self) -> None:
        """Makes it ready to run, unless it is.

        Raises:
            RuntimeError: what DALI says. The pipeline is dropped: DALI would take it for built the
                next time, with nothing in it.
        """
        try:
            if self._pipeline is None:
                self._pipeline = self._define()
            self._pipeline.build()
        except Exception:
            self.drop()
            raise

    def run(self, **inputs: Any) -> Any:
        """Runs it once; returns its outputs, whose memory is theirs.

        Raises:
            RuntimeError: what DALI says. The pipeline is dropped: DALI says not to use it again.
        """
        try:
            self.build()
            return self._pipeline.run(**inputs)
        except Exception:
            self.drop()
            raise

    def drop(self) -> None:
        """Lets go of it, and so of all memory that it keeps for its next run."""
        self._pipeline = None


_all: weakref.WeakSet[Prebuilt] = weakref.WeakSet()


def drop_all() -> None:
    """Drops every pipeline of this process: DALI does not tell which one memory belongs to."""
    for prebuilt in list(_all):
        prebuilt.drop()

"""Prebuilt pipelines, which can be dropped with their memory and are built again when needed."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvidia.dali import Pipeline


class Prebuilt:
    """A DALI pipeline, which is built again whenever it is run after a drop."""

    def __init__(self, define: Callable[[], Pipeline]) -> None:
        """Calls ``define`` for the graph, now and after each drop; building it needs the device."""
        self._define = define
        self._pipeline: Pipeline | None = define()
        _all.add(self)

    def build(self) -> None:
        """Builds it, unless it is built.

        Raises:
            RuntimeError: what DALI says. The pipeline is dropped: DALI would take it for built the
                next time, with nothing in it.
        """
        try:
            self._built()
        except Exception:
            self.drop()
            raise

    def run(self, **inputs: object) -> Any:
        """Runs it once; returns its outputs, which no later run writes to.

        Raises:
            RuntimeError: what DALI says. The pipeline is dropped: DALI says not to use it again.
        """
        try:
            return self._built().run(**inputs)
        except Exception:
            self.drop()
            raise

    def _built(self) -> Pipeline:
        if self._pipeline is None:
            self._pipeline = self._define()
        self._pipeline.build()
        return self._pipeline

    def drop(self) -> None:
        """Frees it, and with it all memory that it keeps for its next run."""
        self._pipeline = None


_all: weakref.WeakSet[Prebuilt] = weakref.WeakSet()


def drop_all() -> None:
    """Drops every pipeline of this process: DALI does not tell which one memory belongs to."""
    for prebuilt in list(_all):
        prebuilt.drop()

"""Prebuilt pipelines, which can be dropped with their memory and are built again on demand."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvidia.dali import Pipeline


class Prebuilt:
    """A DALI pipeline, which is built again if it is run after a drop."""

    def __init__(self, define: Callable[[], Pipeline]) -> None:
        """``define`` returns the graph; it is called now and after each drop."""
        self._define = define
        self._pipeline: Pipeline | None = define()
        self._runs = False
        _all.add(self)

    def build(self) -> None:
        """Builds the pipeline, unless it is built.

        Raises:
            RuntimeError: DALI failed. The pipeline is dropped, since DALI would take it for built
                the next time, with nothing in it.
        """
        try:
            self._built()
        except Exception:
            self.drop()
            raise

    def start(self, **inputs: object) -> None:
        """Starts a run.

        Raises:
            RuntimeError: DALI failed. The pipeline is dropped, since DALI forbids using it again.
        """
        try:
            pipeline = self._built()
            for name, values in inputs.items():
                pipeline.feed_input(name, values)
            pipeline.schedule_run()
            self._runs = True
        except Exception:
            self.drop()
            raise

    def outputs(self) -> Any:
        """Waits for the run that was started; returns its outputs, which no later run overwrites.

        Raises:
            MemoryError: the pipeline has been dropped since, to free its memory.
            RuntimeError: as from ``start``.
        """
        if self._pipeline is None:
            raise MemoryError("the pipeline was dropped while it ran")
        self._runs = False
        try:
            return self._pipeline.outputs()
        except Exception:
            self.drop()
            raise

    def _built(self) -> Pipeline:
        if self._pipeline is None:
            self._pipeline = self._define()
        self._pipeline.build()
        return self._pipeline

    def drop(self) -> None:
        """Frees the pipeline and the memory that it keeps for its next run.

        It waits for a run first: DALI does not say what becomes of one when its pipeline is freed.
        """
        if self._runs and self._pipeline is not None:
            self._runs = False
            with contextlib.suppress(Exception):
                self._pipeline.outputs()
        self._pipeline = None

    def __del__(self) -> None:
        self.drop()


_all: weakref.WeakSet[Prebuilt] = weakref.WeakSet()


def drop_all() -> None:
    """Drops all pipelines of the process: DALI does not report which one a block belongs to."""
    for prebuilt in list(_all):
        prebuilt.drop()

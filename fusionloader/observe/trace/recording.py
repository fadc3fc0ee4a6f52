"""``Trace``: a trace while it is recorded, from ``FusionLoader.trace`` to its file."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from pathlib import Path
from typing import Protocol

from fusionloader.observe.trace.files import TraceFile
from fusionloader.observe.trace.recorder import Recorder, Traced
from fusionloader.observe.trace.timeline import Step
from fusionloader.system.finalizers import ExitFinalizer

log = logging.getLogger("fusionloader.trace")

_MANY = 20_000  # slices that take 2 s to write


class Feed(Protocol):
    """Adds what workers do to a trace."""

    def begin(self, recorder: Recorder, iterator: int) -> None:
        """From now on, as those of an iterator with this number."""

    def end(self) -> None:
        """Adds what is still to be added, and no more from then on."""


class CurrentTrace:
    """The trace of a loader, if one is on."""

    def __init__(self) -> None:
        self._trace: Trace | None = None
        self._began_ns: int | None = None

    def iter_called(self) -> None:
        """``iter(loader)`` is called now; the next step is the first after it."""
        self._began_ns = time.monotonic_ns() if self._trace is not None else None

    def take_began(self) -> int | None:
        """Returns when ``iter(loader)`` was called, once."""
        began, self._began_ns = self._began_ns, None
        return began

    @property
    def trace(self) -> Trace | None:
        """It, unless this is a forked child: then it is the parent's."""
        trace = self._trace
        return trace if trace is not None and trace.pid == os.getpid() else None

    def begin(self, path: str | os.PathLike[str], steps: int | None, traced: Traced) -> Trace:
        """Starts one, see ``FusionLoader.trace``."""
        if steps is not None and (type(steps) is not int or steps < 1):
            raise ValueError(f"steps should be a positive int or None, not {steps!r}")
        if self.trace is not None:
            raise RuntimeError(
                f"this loader is being traced already, into {self.trace.path}: stop() that trace "
                "first. Another loader may be traced at the same time"
            )
        self._trace = Trace(self, TraceFile(path), steps, Recorder(traced))
        return self._trace

    def stop(self) -> None:
        """Ends the trace, if one is on. Training does not end because a trace has no room."""
        if self.trace is None:
            return
        try:
            self.trace.stop()
        except OSError as error:
            log.warning("the trace is lost: %s", error)

    def ended(self, trace: Trace) -> None:
        """Forgets a trace."""
        if self._trace is trace:
            self._trace = None


class Trace:
    """A trace that is being recorded; ``with`` or ``stop()`` ends it, and so does the last step.

    Where neither does, it is written when its loader is closed or collected, or Python exits.

    Attributes:
        path: path of the file, which exists once the trace has ended.
        pid: id of the process that records it.
        recorder: what was collected until now.
    """

    def __init__(
        self, current: CurrentTrace, file: TraceFile, steps: int | None, recorder: Recorder
    ) -> None:
        """``steps`` batches are recorded, all where it is ``None``."""
        self.path: Path = file.path
        self.pid: int = os.getpid()
        self.recorder: Recorder = recorder
        # Weakly: a loader that is not referred to any more ends its trace at once.
        self._current = weakref.ref(current)
        self._steps = steps
        self._feeds: weakref.WeakSet[Feed] = weakref.WeakSet()
        self._ending = threading.RLock()  # a signal handler may stop it, too
        self._write = ExitFinalizer(self, _write, file, recorder, self._feeds)

    @property
    def is_on(self) -> bool:
        """Whether this trace is still being recorded."""
        current = self._current()
        return current is not None and current.trace is self

    def attach(self, feed: Feed | None, why_none: str) -> int:
        """Adds what an iterator's workers do from now on; returns the iterator's number.

        Without a feed only steps are recorded, and ``why_none`` says why.
        """
        iterator = self.recorder.new_iterator()
        if feed is not None:
            self._feeds.add(feed)
            feed.begin(self.recorder, iterator)
        elif not self.recorder.steps_only:
            self.recorder.steps_only = why_none
        return iterator

    def add(self, step: Step) -> None:
        """Adds a step; the last one ends the trace."""
        self.recorder.steps.append(step)
        self.recorder.poll()
        current = self._current()
        if self._steps is not None and len(self.recorder.steps) >= self._steps and current:
            current.stop()

    def stop(self) -> None:
        """Ends it and writes what there is; does nothing where it has ended.

        Raises:
            OSError: the file cannot be written after all.
        """
        if os.getpid() != self.pid:
            return  # a forked child has no part in it
        with self._ending:
            current = self._current()
            if current is not None:
                current.ended(self)
            self._write()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "on" if self.is_on else "ended"
        return f"<Trace {state}, {len(self.recorder.steps)} steps, {os.fspath(self.path)!r}>"


def _write(file: TraceFile, recorder: Recorder, feeds: weakref.WeakSet[Feed]) -> None:
    for feed in list(feeds):
        feed.end()
    timeline = recorder.timeline()
    if len(timeline.spans) > _MANY:
        log.info("%d slices of workers are written into %s", len(timeline.spans), file.path)
    file.write(timeline)
    if timeline.meta.lost:
        log.warning(
            "%s misses %d spans of workers: training asked for no batch for so long that there was "
            "no room for more",
            file.path,
            timeline.meta.lost,
        )
    log.info("%d steps were traced into %s", len(timeline.steps), file.path)

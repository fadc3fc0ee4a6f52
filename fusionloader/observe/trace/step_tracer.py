"""What an iterator tells the trace of its loader; next to nothing while there is none."""

from __future__ import annotations

import time

from fusionloader.observe.trace.recording import CurrentTrace, Feed, Trace
from fusionloader.observe.trace.timeline import Copy, Step


class StepTracer:
    """Of one iterator; a context manager around each of its ``next()``.

    Attributes:
        feed: what its workers do, ``None`` where they are not seen.
    """

    def __init__(self, current: CurrentTrace, why_no_feed: str = "") -> None:
        """``why_no_feed`` says in words why there is no feed, where there never is one."""
        self._current = current
        self._why_no_feed = why_no_feed
        self._trace: Trace | None = None
        self._iterator = 0
        self._asked_ns = 0
        self._made: tuple[int, int, int, int | None] | None = None
        self.feed: Feed | None = None

    def replace_feed(self, feed: Feed) -> None:
        """The iterator has other workers from now on."""
        self.feed = feed
        if self._trace is not None and self._trace.is_on:
            self._iterator = self._trace.attach(feed, "")

    def follow(self) -> None:
        """Begins with a trace that is on and was not before: ahead of what workers are to do."""
        trace = self._current.trace
        if trace is self._trace:
            return
        self._trace = trace
        if trace is not None and (self.feed is not None or self._why_no_feed):
            self._iterator = trace.attach(self.feed, self._why_no_feed)

    def __enter__(self) -> None:
        self.follow()
        if self._trace is not None:
            self._made = None
            self._asked_ns = time.monotonic_ns()

    def made(self, epoch: int, batch: int, samples: int, complete_ns: int | None = None) -> None:
        """Says which mini-batch ``next()`` is about to return, see ``Step``."""
        if self._trace is not None:
            self._made = epoch, batch, samples, complete_ns

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None or self._trace is None or self._made is None or not self._trace.is_on:
            return
        epoch, batch, samples, complete_ns = self._made
        self._made = None
        began, asked, now = self._current.take_began(), self._asked_ns, time.monotonic_ns()
        self._trace.add(Step(self._iterator, epoch, batch, samples, asked, complete_ns, now, began))

    def copied(self, epoch: int, batch: int, nbytes: int, begun_ns: int) -> None:
        """All copies of a mini-batch to the device were put into the stream."""
        if self._trace is not None:
            copy = Copy(self._iterator, epoch, batch, nbytes, begun_ns, time.monotonic_ns())
            self._trace.recorder.copies.append(copy)

"""Copies to a device on a separate stream, and marks for the progress of its work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:  # this module is also used where POSIX shared memory is missing
    from fusionloader.shm.slots import Mark


class Copies(Protocol):
    """A stream of copies, separate from the consumer's."""

    def run(self, copy: Callable[[], None]) -> Mark:
        """Calls ``copy``, which enqueues copies, on the stream; returns the point behind them."""

    def consumer_waits(self, mark: Mark) -> None:
        """Makes what training enqueues from now on wait for the mark."""

    def mark_consumer(self) -> Mark:
        """Returns the point behind all that training has enqueued."""


def event_behind(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """Returns an event that passes when the stream has done what was enqueued."""
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


class CudaCopies:
    """A stream of a CUDA device; the consumer's is the current stream at each call."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(self, copy: Callable[[], None]) -> Mark:
        """See ``Copies``."""
        with torch.cuda.stream(self._stream):
            copy()
            return event_behind(self._stream)

    def consumer_waits(self, mark: Mark) -> None:
        """See ``Copies``."""
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream(self._device).wait_event(mark)

    def mark_consumer(self) -> Mark:
        """See ``Copies``."""
        return event_behind(torch.cuda.current_stream(self._device))


class _Passed:
    def query(self) -> bool:
        return True


class HostCopies:
    """For host memory, where a copy is done when the call returns."""

    def run(self, copy: Callable[[], None]) -> Mark:
        """See ``Copies``."""
        copy()
        return _Passed()

    def consumer_waits(self, mark: Mark) -> None:
        """See ``Copies``."""

    def mark_consumer(self) -> Mark:
        """See ``Copies``."""
        return _Passed()

"""Copies to a device on a separate stream, and marks for the progress of its work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch

if TYPE_CHECKING:  # this module is also used where POSIX shared memory is missing
    from fusionloader.shm.slots import Mark


class Copies(Protocol):
    """A stream of copies, separate from the consumer's."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        """Returns device memory, uint8; copies enqueued from now on may write to it."""

    def run(self, copy: Callable[[], None]) -> Mark:
        """Calls ``copy``, which enqueues copies, on the stream; returns the point behind them."""

    def consumer_waits(self, mark: Mark) -> None:
        """Makes what training enqueues from now on wait for the mark."""

    def mark_consumer(self) -> Mark:
        """Returns the point behind all that training has enqueued."""


def event_behind(stream: Any, cuda: Any = torch.cuda) -> Mark:
    """Returns an event that passes when the stream has done what was enqueued."""
    event = cuda.Event()
    event.record(stream)
    return event  # type: ignore[no-any-return]


class CudaCopies:
    """A stream of a CUDA device; the consumer's is the current stream at each call."""

    def __init__(
        self,
        device: torch.device,
        cuda: Any = torch.cuda,
        empty: Callable[..., torch.Tensor] = torch.empty,
    ) -> None:
        """``cuda`` has the streams and events, ``empty`` the memory: tests give their own."""
        self._device, self._cuda, self._empty = device, cuda, empty
        self._stream = cuda.Stream(device)

    def allocate(self, nbytes: int) -> torch.Tensor:
        """See ``Copies``."""
        memory = self._empty(nbytes, dtype=torch.uint8, device=self._device)
        # The caching allocator gives out what training has freed, with kernels that use it queued.
        self._stream.wait_stream(self._cuda.current_stream(self._device))
        return memory

    def run(self, copy: Callable[[], None]) -> Mark:
        """See ``Copies``."""
        with self._cuda.stream(self._stream):
            copy()
        return event_behind(self._stream, self._cuda)

    def consumer_waits(self, mark: Mark) -> None:
        """See ``Copies``."""
        self._cuda.current_stream(self._device).wait_event(mark)

    def mark_consumer(self) -> Mark:
        """See ``Copies``."""
        return event_behind(self._cuda.current_stream(self._device), self._cuda)


class _Passed:
    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


class HostCopies:
    """For host memory, where a copy is done when the call returns."""

    def allocate(self, nbytes: int) -> torch.Tensor:
        """See ``Copies``."""
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")

    def run(self, copy: Callable[[], None]) -> Mark:
        """See ``Copies``."""
        copy()
        return _Passed()

    def consumer_waits(self, mark: Mark) -> None:
        """See ``Copies``."""

    def mark_consumer(self) -> Mark:
        """See ``Copies``."""
        return _Passed()

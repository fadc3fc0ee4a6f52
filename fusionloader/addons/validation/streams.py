"""On which stream a part computes, and what must live until it has.

Theory of operation. On CUDA each part has a stream of the least priority. The replica is written on
training's current stream, so the copy is behind training's last step and before its next one
without further events. The part's stream waits for an event behind the copy. Nothing is copied into
the replica again before all parts have synchronised with their streams.

A batch may have been allocated on another stream, or lie in memory that a loader uses again. The
part keeps it until an event behind the work on it has passed, so ``record_stream`` is not needed.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn

_MOST_HELD = 4  # batches whose work may be enqueued and not done


class Isolation(Protocol):
    """Where a part computes."""

    def entered(self, behind: Any) -> AbstractContextManager[None]:
        """Has torch compute there within the block, behind what ``mark`` returned."""

    def hold(self, batch: object) -> None:
        """Keeps a batch until what is enqueued now is done."""

    def synchronize(self) -> None:
        """Waits until all is done."""


class HostIsolation:
    """On the host what was called is done, and threads are all there is."""

    def entered(self, behind: Any) -> AbstractContextManager[None]:
        """See ``Isolation``."""
        return nullcontext()

    def hold(self, batch: object) -> None:
        """See ``Isolation``."""

    def synchronize(self) -> None:
        """See ``Isolation``."""


class StreamIsolation:
    """A CUDA stream of the least priority."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        least, _ = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]
        self._stream = torch.cuda.Stream(device, priority=least)  # type: ignore[no-untyped-call]
        self._held: deque[tuple[torch.cuda.Event, object]] = deque()

    @contextmanager
    def entered(self, behind: Any) -> Iterator[None]:
        """See ``Isolation``."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            if behind is not None:
                self._stream.wait_event(behind)
            yield

    def hold(self, batch: object) -> None:
        """See ``Isolation``."""
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        self._held.append((event, batch))
        while len(self._held) > _MOST_HELD:
            self._held.popleft()[0].synchronize()

    def synchronize(self) -> None:
        """See ``Isolation``."""
        self._stream.synchronize()
        self._held.clear()


def isolation_on(device: torch.device | None) -> Isolation:
    """Returns where a part computes that validates on a device."""
    if device is not None and device.type == "cuda":
        return StreamIsolation(device)
    return HostIsolation()


def mark(device: torch.device | None) -> torch.cuda.Event | None:
    """Returns an event behind what is enqueued to the current stream; ``None`` on the host."""
    if device is None or device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def computing_device(device: torch.device | None, model: nn.Module) -> torch.device | None:
    """Returns where a model computes: on ``device``, or where its first tensor is."""
    if device is not None:
        return device
    tensors = itertools.chain(model.parameters(), model.buffers())
    first = next(tensors, None)
    return None if first is None else first.device

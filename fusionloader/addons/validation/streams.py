"""The stream on which a part computes, and the lifetime of its batches.

On CUDA each part has a stream of the least priority. The replica is written on training's current
stream, so that the copy lies between two steps of training without further events. The part's
stream waits for an event behind the copy. Nothing is copied into the replica again before all parts
have synchronised with their streams.

A batch may have been allocated on another stream, or lie in memory that a loader uses again. The
part holds it until an event behind the work on it has passed, so ``record_stream`` is not needed.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

_MOST_HELD = 4  # batches with unfinished work


class Isolation:
    """The place where a part computes: the host, where work is done when its call returns."""

    def entered(self, behind: Any) -> AbstractContextManager[None]:
        """Makes torch compute there within the block, behind the event of ``mark``."""
        return nullcontext()

    def hold(self, batch: object) -> None:
        """Holds a batch until the work that is enqueued now is done."""

    def synchronize(self) -> None:
        """Waits until all enqueued work is done."""


class StreamIsolation(Isolation):
    """A CUDA stream of the least priority."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        least, _ = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]
        self._stream = torch.cuda.Stream(device, priority=least)  # type: ignore[no-untyped-call]
        self._held: deque[tuple[torch.cuda.Event, object]] = deque()

    @contextmanager
    def entered(self, behind: Any) -> Iterator[None]:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            if behind is not None:
                self._stream.wait_event(behind)
            yield

    def hold(self, batch: object) -> None:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(self._stream)
        self._held.append((event, batch))
        while len(self._held) > _MOST_HELD:
            self._held.popleft()[0].synchronize()

    def synchronize(self) -> None:
        self._stream.synchronize()
        self._held.clear()


def isolation_on(device: torch.device | None) -> Isolation:
    """Returns the isolation of a part that validates on ``device``."""
    if device is not None and device.type == "cuda":
        return StreamIsolation(device)
    return Isolation()


def mark(device: torch.device | None) -> torch.cuda.Event | None:
    """Returns an event behind the current stream's work; ``None`` on the host."""
    if device is None or device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


def computing_device(device: torch.device | None, model: nn.Module) -> torch.device | None:
    """Returns ``device``, or the device of the model's first tensor."""
    if device is not None:
        return device
    tensors = itertools.chain(model.parameters(), model.buffers())
    first = next(tensors, None)
    return None if first is None else first.device

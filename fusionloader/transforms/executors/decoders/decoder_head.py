"""Drives a decoder, and checks everything about its results that could spoil a batch."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from fusionloader.transforms.executors.decoders.head_steps import HeadStep
from fusionloader.transforms.executors.decoders.interface import DecodeCommand, Decoded, Decoder
from fusionloader.transforms.executors.device_errors import FileRefused, is_device_lost, is_shortage

if TYPE_CHECKING:
    import torch

_GRAIN = 1 << 16  # block sizes are multiples of this, so that similar images can share blocks
_PAUSE_SECONDS = 0.0002  # for decoders whose ``finished`` does not wait
_INSTEAD = "mend it, or choose another one: GpuWorker(decoder=...)"

Result = TypeVar("Result")


class DecoderFailed(RuntimeError):
    """A decoder raised, broke the rules of its interface, or did not answer."""


class BufferPool:
    """Recycled blocks of uint8 memory on one device; may be used by several threads.

    The block that was given back last is reused first. A block that is never given back is freed
    with its last tensor.
    """

    def __init__(self, device: int | None, most_free: int) -> None:
        """Starts without blocks.

        Args:
            device: index of a CUDA device, ``None`` for the CPU's memory.
            most_free: maximum number of free blocks that are kept, the largest ones.
        """
        self._device = "cpu" if device is None else f"cuda:{device}"
        self._on_stream: Callable[[], AbstractContextManager[object]] = nullcontext
        if device is not None:
            import torch

            # Else a decoder's own thread gets memory that work in the default stream still uses.
            self._on_stream = partial(torch.cuda.stream, torch.cuda.current_stream(device))
        self._most_free = most_free
        self._free: list[torch.Tensor] = []
        self._lock = threading.Lock()

    def take(self, *shape: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a tensor of that shape, and its block for ``give_back``.

        Raises:
            RuntimeError: memory ran out.
        """
        nbytes = prod(shape)
        block = self._recycled(nbytes)
        if block is None:
            import torch

            size = max(-(-nbytes // _GRAIN), 1) * _GRAIN
            with self._on_stream():
                block = torch.empty(size, dtype=torch.uint8, device=self._device)
        return block[:nbytes].view(shape), block

    def _recycled(self, nbytes: int) -> torch.Tensor | None:
        with self._lock:
            for place in range(len(self._free) - 1, -1, -1):
                if self._free[place].nbytes >= nbytes:
                    return self._free.pop(place)
        return None

    def give_back(self, block: torch.Tensor) -> None:
        """Frees a block that is no longer read or written."""
        with self._lock:
            self._free.append(block)
            if len(self._free) > self._most_free:
                smallest = min(range(len(self._free)), key=lambda place: self._free[place].nbytes)
                del self._free[smallest]


DecodeGroup: TypeAlias = Sequence[DecodeCommand]
"""Commands that were submitted together."""


class DecoderHead:
    """Submits groups of commands to a decoder and collects their results."""

    def __init__(
        self,
        decoder: Decoder,
        device: int | None,
        capacity: int,
        timeout: float,
        name: str = "",
        keeps_memory: bool = True,
    ) -> None:
        """Starts the decoder.

        Args:
            decoder: decoder that is not started.
            device: index of a CUDA device, ``None`` for the CPU.
            capacity: maximum number of commands in flight.
            timeout: maximum seconds between two results while commands are in flight.
            name: name of the decoder in messages.
            keeps_memory: whether buffers are recycled from group to group.

        Raises:
            DecoderFailed: the decoder cannot be started.
        """
        self._decoder, self._device, self._timeout = decoder, device, timeout
        self._name = name or type(decoder).__name__
        self._pool = BufferPool(device, capacity if keeps_memory else 0)
        self._next = 0
        self._open: dict[int, DecodeCommand] = {}
        self._blocks: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._finished: dict[int, Decoded] = {}
        self._call("start", decoder.start, device, capacity)

    def begin(self, encoded: Sequence[bytes], steps: Sequence[HeadStep]) -> DecodeGroup:
        """Submits a group; ``finish`` returns its results.

        Raises:
            DecoderFailed: the decoder raised, unless memory ran out or the device is lost.
        """
        commands = [self._command(*each) for each in zip(encoded, steps, strict=True)]
        self._open.update((command.ticket, command) for command in commands)
        if commands:
            try:
                self._call("submit", self._decoder.submit, commands)
            except BaseException:
                self._give_up(commands)
                raise
        return commands

    def _command(self, encoded: bytes, step: HeadStep) -> DecodeCommand:
        ticket, self._next = self._next, self._next + 1
        buffer = partial(self._buffer, ticket, step.height, step.width)
        size = step.window, step.height, step.width
        return DecodeCommand(ticket, encoded, *size, step.filter, step.hflip, step.vflip, buffer)

    def _buffer(self, ticket: int, height: int, width: int) -> torch.Tensor:
        found = self._blocks.get(ticket)
        if found is None:
            # Two threads of a decoder do not share a command, so this ticket has no race.
            found = self._blocks.setdefault(ticket, self._pool.take(height, width, 3))
        return found[0]

    def finish(self, group: DecodeGroup) -> list[Decoded]:
        """Waits for a group; returns its results in the order of its commands.

        Images are valid until ``release``.

        Raises:
            DecoderFailed: the decoder raised, broke its rules or did not answer in time.
        """
        try:
            self._wait(group)
        except BaseException:
            self._give_up(group)
            raise
        return [self._finished.pop(command.ticket) for command in group]

    def _wait(self, group: DecodeGroup) -> None:
        missing = {command.ticket for command in group} - self._finished.keys()
        deadline = time.monotonic() + self._timeout
        while missing:
            left = deadline - time.monotonic()
            if left <= 0:
                raise self._failed(
                    f"has finished nothing for {self._timeout:g} s, with {len(self._open)} images "
                    "to be decoded"
                )
            found = self._call("finished", self._decoder.finished, left)
            for each in found:
                self._note(each)
                missing.discard(each.ticket)
                deadline = time.monotonic() + self._timeout
            if not found:
                time.sleep(_PAUSE_SECONDS)

    def _give_up(self, commands: Sequence[DecodeCommand]) -> None:
        """Forgets commands. Their memory may still be written to: it is not recycled."""
        for command in commands:
            self._open.pop(command.ticket, None)
            self._blocks.pop(command.ticket, None)

    def _note(self, found: Decoded) -> None:
        if not isinstance(found, Decoded):
            raise self._failed(f"finished a {type(found).__name__}, which is no Decoded")
        command = self._open.pop(found.ticket, None)
        if command is None:
            again = isinstance(found.ticket, int) and 0 <= found.ticket < self._next
            what = "twice" if again else "and was never given it"
            raise self._failed(f"finished the ticket {found.ticket!r} {what}")
        image = found.image
        if image is None:
            reason = found.reason if isinstance(found.reason, FileRefused) else str(found.reason)
            found = Decoded(found.ticket, None, reason or "the decoder gave no reason")
        else:
            if (why := _why_unfit(image, command, self._device)) is not None:
                raise self._failed(f"finished with {why}")
            if self._device is None and hasattr(image, "numpy"):
                found = Decoded(found.ticket, image.numpy())
        self._finished[found.ticket] = found

    def release(self, group: DecodeGroup) -> None:
        """Recycles the memory of a finished group's images."""
        for command in group:
            if (taken := self._blocks.pop(command.ticket, None)) is not None:
                self._pool.give_back(taken[1])

    def close(self) -> None:
        self._call("close", self._decoder.close)

    def _call(self, method: str, call: Callable[..., Result], *arguments: object) -> Result:
        try:
            return call(*arguments)
        except Exception as error:
            # More memory may be borrowed, and a lost device is not the decoder's fault.
            if is_shortage(error) or is_device_lost(error):
                raise
            frames = traceback.extract_tb(error.__traceback__)
            where = f" ({frames[-1].filename}:{frames[-1].lineno})"
            raise self._failed(
                f"raised {type(error).__name__} in {method}: {' '.join(str(error).split())}{where}"
            ) from error

    def _failed(self, what: str) -> DecoderFailed:
        return DecoderFailed(f"the decoder {self._name} {what}; {_INSTEAD}")


def _why_unfit(image: Any, command: DecodeCommand, device: int | None) -> str | None:
    """Returns what is wrong with an image, in words; ``None`` if nothing is."""
    wanted = (command.height, command.width, 3)
    if device is None and hasattr(image, "numpy"):
        if image.device.type != "cpu":
            return f"an image on {image.device}, not in the CPU's memory"
        image = image.numpy()
    place = "__array_interface__" if device is None else "__cuda_array_interface__"
    array = getattr(image, place, None)
    if array is None:
        return f"a {type(image).__name__}, which has no {place}"
    element = np.dtype(array["typestr"])  # uint8 is "=B" in DALI, "|u1" elsewhere
    if tuple(array["shape"]) != wanted or element != np.uint8:
        found = f"{element} of the shape {tuple(array['shape'])}"
        return f"an image of {found} instead of uint8 of the shape {wanted}"
    strides = array.get("strides")
    if strides is not None and tuple(strides) != (command.width * 3, 3, 1):
        return f"an image with the strides {tuple(strides)}, which is not contiguous"
    return None

"""Decoders of whole images: window, resize and mirroring by torch, on the same device."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fusionloader.executors.dali.head_steps import FILTERS
from fusionloader.executors.decoders.interface import DecodeCommand, Decoded

if TYPE_CHECKING:
    import torch


class WholeImageDecoder(ABC):
    """Base of decoders of a library that decodes lists of whole images.

    Whole ones, since a library's own windows are not those of every engine behind it, and pixels at
    the border of a window depend on what is decoded beside it.
    """

    def start(self, device: int | None, capacity: int) -> None:
        """See ``Decoder``."""
        import torch

        self._device = torch.device("cpu" if device is None else f"cuda:{device}")
        self._done: deque[tuple[torch.cuda.Event | None, list[Decoded], object]] = deque()
        self._open()

    @abstractmethod
    def _open(self) -> None:
        """Loads the library."""

    @abstractmethod
    def _decode(self, files: Sequence[bytes]) -> list[torch.Tensor | str]:
        """Returns for each file uint8 RGB pixels on the device, or why there are none.

        Pixels are height x width x 3, and ordered before what the current stream does next.
        """

    def submit(self, commands: Sequence[DecodeCommand]) -> None:
        """See ``Decoder``."""
        import torch

        images = self._decode([command.encoded for command in commands])
        done = []
        for command, image in zip(commands, images, strict=True):
            if isinstance(image, str):
                done.append(Decoded(command.ticket, None, image))
            else:
                cut(image, command, out := command.buffer())
                done.append(Decoded(command.ticket, out))
        event = None
        if self._device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self._device))
        self._done.append((event, done, images))  # which a library may free without an order

    def finished(self, seconds: float) -> Sequence[Decoded]:
        """See ``Decoder``; waits for the oldest group, as the device does its work in order."""
        if not self._done:
            return ()
        event, done, _ = self._done.popleft()
        if event is not None:
            event.synchronize()
        return done

    def close(self) -> None:
        """See ``Decoder``."""
        self._done.clear()


def cut(image: torch.Tensor, command: DecodeCommand, out: torch.Tensor) -> None:
    """Writes what a command wants of an image to ``out``: window, resize, mirroring.

    The resize is torch's with antialiasing, in float32, rounded once. Pillow rounds between its two
    passes, too: of a result some values are a level apart.
    """
    from torch.nn.functional import interpolate

    x, y, width, height = command.window
    window = image[y : y + height, x : x + width]
    if (height, width) != (command.height, command.width):
        planes = window.permute(2, 0, 1)[None].float()
        size = (command.height, command.width)
        resized = interpolate(planes, size=size, mode=command.filter, antialias=True)
        window = resized[0].round_().clamp_(0, 255).permute(1, 2, 0)
    mirrored = [axis for axis, flip in ((0, command.vflip), (1, command.hflip)) if flip]
    out.copy_(window.flip(mirrored) if mirrored else window)


@functools.cache
def filters() -> tuple[str, ...]:
    """Returns the filters that this torch resizes with."""
    import torch
    from torch.nn.functional import interpolate

    known = []
    for name in FILTERS:
        try:
            interpolate(torch.zeros(1, 1, 2, 2), size=(1, 1), mode=name, antialias=True)
        except (NotImplementedError, ValueError):
            continue
        known.append(name)
    return tuple(known)

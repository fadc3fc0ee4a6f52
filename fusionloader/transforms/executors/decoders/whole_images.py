"""Decoders of whole images: torch cuts the window, on the same device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fusionloader.transforms.executors.decoders.interface import DecodeCommand, Decoded

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
    """Writes a command's window of an image to ``out``; the fused kernel resizes and mirrors it."""
    x, y, width, height = command.window
    out.copy_(image[y : y + height, x : x + width])

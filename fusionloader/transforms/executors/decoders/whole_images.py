"""Decoders of whole images: torch cuts the windows, on the same device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fusionloader.transforms.executors.decoders.interface import DecodeCommand, Decoded

if TYPE_CHECKING:
    import torch


class WholeImageDecoder(ABC):
    """Base of decoders by a library that decodes lists of whole images.

    Windows of the library itself are not used: they depend on the engine behind it, and pixels at
    the border of a window depend on what is decoded beside it.
    """

    def start(self, device: int | None, capacity: int) -> None:
        import torch

        self._device = torch.device("cpu" if device is None else f"cuda:{device}")
        self._done: deque[tuple[torch.cuda.Event | None, list[Decoded], object]] = deque()
        self._open()

    @abstractmethod
    def _open(self) -> None:
        """Loads the library; called once, by ``start``."""

    @abstractmethod
    def _decode(self, files: Sequence[bytes]) -> list[torch.Tensor | str]:
        """Returns for each file uint8 RGB pixels on the device, or why there are none.

        Pixels are height x width x 3. They are ready for later work on the current stream.
        """

    def submit(self, commands: Sequence[DecodeCommand]) -> None:
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
        # Images are kept until the event: a library may reuse their memory while it is copied.
        self._done.append((event, done, images))

    def finished(self, seconds: float) -> Sequence[Decoded]:
        """Returns the oldest group, and waits for it as long as it takes."""
        if not self._done:
            return ()
        event, done, _ = self._done.popleft()
        if event is not None:
            event.synchronize()
        return done

    def close(self) -> None:
        self._done.clear()


def cut(image: torch.Tensor, command: DecodeCommand, out: torch.Tensor) -> None:
    """Writes a command's window of an image to ``out``, neither resized nor mirrored."""
    x, y, width, height = command.window
    out.copy_(image[y : y + height, x : x + width])

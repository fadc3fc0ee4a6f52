"""The interface of decoders: commands go in one after the other, results come in any order.

So a device with a queue of its own is driven without waiting for it (DLBooster §3.3-3.4).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, eq=False)
class DecodeCommand:
    """An image to be decoded, cut, resized and mirrored, in this order.

    Attributes:
        ticket: what the result is known by; never the same twice.
        encoded: a JPEG file of 1 or 3 color channels whose headers are whole, and whose markers
            libjpeg takes. What is between them may be damaged.
        window: (x, y, width, height) in pixels of the file, within its image. EXIF's orientation is
            left alone.
        height: of the result, in pixels.
        width: of the result.
        filter: of the resize, "bilinear", "bicubic" or "lanczos", with Pillow's meaning: its
            support grows with the scale (antialiasing). A window of the result's size stays as it
            is.
        hflip: whether the result is mirrored from left to right.
        vflip: whether it is mirrored from top to bottom.
        buffer: returns recycled memory for the result: a contiguous uint8 tensor, height x width x
            3, on the device of the worker, with anything in it. It is the same one at each call,
            and may be called in any thread. It is used again when the result has been used.
    """

    ticket: int
    encoded: bytes
    window: tuple[int, int, int, int]
    height: int
    width: int
    filter: str
    hflip: bool
    vflip: bool
    buffer: Callable[[], torch.Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """What became of a command.

    Attributes:
        ticket: the command's.
        image: the RGB pixels, uint8, height x width x 3, contiguous, on the device of the worker:
            the command's ``buffer()``, or memory of the decoder's own, which it must not change as
            long as this refers to it. A tensor, or what has ``__cuda_array_interface__`` on a
            device, or ``__array_interface__`` on the CPU. ``None`` where there are none.
        reason: why there are none, in a few words without the image's name or numbers:
            ``stats()`` counts them. A CPU worker does the sample then. With a ``FileRefused``,
            which is a ``str``, the decoder is never given the file again.
    """

    ticket: int
    image: Any
    reason: str = ""


class Decoder(Protocol):
    """Decodes for a GPU worker: ``GpuWorker(decoder=MyDecoder(...))``.

    An object of a class of yours is pickled into the process that it works in, so it should be no
    more than its arguments until ``start``. All methods are called by one thread. What one of them
    raises, and a result against the rules below, ends the GPU worker, and CPU workers do its work.
    """

    def start(self, device: int | None, capacity: int) -> None:
        """Makes it ready; called once, in the process that it works in.

        Args:
            device: index of the CUDA device that pixels go to, ``None`` for the CPU's memory.
            capacity: no more commands than that are unfinished at a time.
        """

    def submit(self, commands: Sequence[DecodeCommand]) -> None:
        """Takes commands, behind those that it has; need not wait for them.

        If it raises, none of these commands has a result.
        """

    def finished(self, seconds: float) -> Sequence[Decoded]:
        """Returns what has been finished since the last call, in any order, each command once.

        Pixels are whole, for any stream of the device. Waits at most so long for the first one;
        returns nothing if none has come.
        """

    def close(self) -> None:
        """Ends it; unfinished commands have no results."""

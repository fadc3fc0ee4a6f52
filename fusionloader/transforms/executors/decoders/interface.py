"""The interface of decoders: commands are submitted in order, results come in any order.

This way a device with a queue of its own is driven without waiting for it (DLBooster §3.3-3.4).
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
        ticket: number of the command, which its result refers to; never the same twice.
        encoded: bytes of a JPEG file of 1 or 3 color channels. Its headers are complete, and
            libjpeg accepts its markers; the data between them may be damaged.
        window: (x, y, width, height) in pixels of the file, within its image. The orientation of
            EXIF is ignored.
        height: height of the result, in pixels.
        width: width of the result, in pixels.
        filter: filter of the resize: "bilinear", "bicubic" or "lanczos", as in Pillow: its support
            grows with the scale (antialiasing). A window of the result's size is not changed.
        hflip: whether the result is mirrored from left to right.
        vflip: whether the result is mirrored from top to bottom.
        buffer: function that returns recycled memory for the result: a contiguous uint8 tensor,
            height x width x 3, on the device of the worker, with arbitrary content. Each call
            returns the same tensor; any thread may call it. The memory is recycled after the result
            has been used.
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
    """The result of a command.

    Attributes:
        ticket: ticket of the command.
        image: RGB pixels, uint8, height x width x 3, contiguous, on the device of the worker. They
            lie in the command's ``buffer()``, or in memory of the decoder, which must not change
            while this object refers to it. The image is a tensor, or has the attribute
            ``__cuda_array_interface__`` on a device, ``__array_interface__`` on the CPU. ``None``
            if the file cannot be decoded; a CPU worker then makes the sample.
        reason: reason for ``None``, in a few words without the image's name or numbers:
            ``stats()`` counts equal reasons. After a ``FileRefused``, which is a ``str``, the
            decoder does not get the file again.
    """

    ticket: int
    image: Any
    reason: str = ""


class Decoder(Protocol):
    """Decodes for a GPU worker: ``GpuWorker(decoder=MyDecoder(...))``.

    An object of a class of yours is pickled and sent to the process of the GPU worker, so it should
    only hold its arguments until ``start``. One thread calls all methods. If a method raises, or a
    result breaks the rules below, the GPU worker ends, and CPU workers do its work.
    """

    def start(self, device: int | None, capacity: int) -> None:
        """Prepares the decoder; called once, in the process of the GPU worker.

        Args:
            device: index of the CUDA device to decode to, ``None`` for the CPU's memory.
            capacity: maximum number of unfinished commands.
        """

    def submit(self, commands: Sequence[DecodeCommand]) -> None:
        """Accepts further commands; need not wait for their results.

        If it raises, none of these commands may have a result.
        """

    def finished(self, seconds: float) -> Sequence[Decoded]:
        """Returns the results since the last call, in any order; each command has one result.

        The pixels must be complete for any stream of the device. Waits at most ``seconds`` for the
        first result; returns an empty sequence if there is none by then.
        """

    def close(self) -> None:
        """Ends the decoder; unfinished commands have no results."""

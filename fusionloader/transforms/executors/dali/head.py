"""Decodes windows of JPEG files by one prebuilt pipeline of DALI."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from nvidia.dali import Pipeline, fn, types

from fusionloader.transforms.executors.dali.memory.borrowing import (
    may_borrow,
    release_unused_memory,
)
from fusionloader.transforms.executors.dali.prebuilt import Prebuilt
from fusionloader.transforms.executors.device_errors import (
    DecodeFailed,
    FileRefused,
    is_device_lost,
    is_shortage,
)
from fusionloader.transforms.executors.native import jpeg_size, make_executor
from fusionloader.transforms.plan.stages import Plan

log = logging.getLogger("fusionloader.gpu")

# A uint8 tensor of DALI, height x width x channels: DALI has no types.
Image = Any
Window = tuple[int, int, int, int]
"""x, y, width and height, in pixels of the file."""
File = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Backend:
    """Where pipelines run: on the CUDA device with index ``device``, or on the CPU (``None``)."""

    device: int | None = None
    max_batch: int = 64
    threads: int = 1

    @property
    def on_gpu(self) -> bool:
        return self.device is not None

    def pipeline(self) -> Pipeline:
        """Returns an empty pipeline without prefetching: each run takes the inputs given to it."""
        return Pipeline(
            batch_size=self.max_batch,
            num_threads=self.threads,
            device_id=self.device,
            prefetch_queue_depth=1,
        )


@dataclass(frozen=True, slots=True)
class DaliDecoded:
    """Pixels of a sample, height x width x channels; or ``None`` and the reason why."""

    image: Image
    reason: str = ""


class DaliHead:
    """Decodes windows of JPEG files. The fused kernel resizes and mirrors them afterwards."""

    def __init__(
        self,
        device: int | None,
        max_batch: int,
        threads: int = 1,
        *,
        hw_decoder_load: float = 1.0,
        fancy_upsampling: bool = True,
    ) -> None:
        """Builds the pipeline.

        Args:
            device: index of a CUDA device, ``None`` for DALI's CPU backend.
            max_batch: maximum number of samples of a run.
            threads: number of threads that decode.
            hw_decoder_load: fraction of the samples for a GPU's hardware decoder, 0 to 1.
            fancy_upsampling: whether a GPU interpolates chroma as libjpeg does, or repeats it.
        """
        self._backend = Backend(device, max_batch, threads=threads)
        # Reading headers takes 2 us and keeps most files that DALI cannot decode from it.
        self._headers = make_executor(Plan((), None, None, None))
        gpu_options: dict[str, object] = {
            "hw_decoder_load": hw_decoder_load,
            "jpeg_fancy_upsampling": fancy_upsampling,
        }
        self._pipeline = Prebuilt(partial(_defined, self._backend, gpu_options))
        self._pipeline.build()

    def begin(self, encoded: Sequence[bytes], windows: Sequence[Window]) -> None:
        """Starts to decode a window of each of at most ``max_batch`` files."""
        self._refused = list(map(self._refusal, encoded, windows))
        good = [place for place, reason in enumerate(self._refused) if not reason]
        self._files = [np.frombuffer(encoded[place], np.uint8) for place in good]
        self._windows = [windows[place] for place in good]
        self._error = self._start(self._files, self._windows) if good else None

    def finish(self) -> list[DaliDecoded]:
        """Waits for the files; returns the pixels of each, or the reason why there are none.

        Images are tensors of DALI, which no later run overwrites.

        Raises:
            RuntimeError: the device is lost, or memory ran out and more might be borrowed.
        """
        files, windows, error = self._files, self._windows, self._error
        self._files, self._windows, self._error = [], [], None
        made = iter(self._made(files, windows, error) if files else ())
        return [DaliDecoded(None, why) if why else next(made) for why in self._refused]

    def _refusal(self, file: bytes, window: Window) -> str:
        """Returns why DALI must not get a file, as one bad sample fails all; empty if it may."""
        size = jpeg_size(self._headers, file)
        if size is None:
            return FileRefused("not a whole JPEG file of 1 or 3 color channels")
        x, y, width, height = window
        if min(x, y) < 0 or min(width, height) < 1 or x + width > size[0] or y + height > size[1]:
            return f"the window {window} is not within the image of {size[0]} x {size[1]}"
        return ""

    def _start(self, files: Sequence[File], windows: list[Window]) -> RuntimeError | None:
        """Starts a run; returns what DALI raised, without its traceback, which holds memory."""
        try:
            self._pipeline.start(encoded=files, **_values(windows))
        except RuntimeError as error:
            return error.with_traceback(None)
        return None

    def _decode(self, files: Sequence[File], windows: list[Window]) -> list[DaliDecoded]:
        return self._made(files, windows, self._start(files, windows))

    def _made(
        self, files: Sequence[File], windows: list[Window], error: RuntimeError | None
    ) -> list[DaliDecoded]:
        """Waits for a run; if it fails, decodes each half, down to the bad files."""
        try:
            if error is not None:
                raise error
            (images,) = self._pipeline.outputs()
            return [DaliDecoded(image) for image in images]
        except RuntimeError as failure:
            short, cause = is_shortage(failure), _cause(failure)
            if is_device_lost(failure) or (short and may_borrow(self._backend.device)):
                raise
        error = None
        # Outside of the handler: the error's traceback keeps the failed pipeline's memory alive.
        if short:  # halves need less of it at a time
            release_unused_memory()
        self._pipeline.build()
        if len(files) == 1:
            return [DaliDecoded(None, cause if short else DecodeFailed(cause))]
        middle = len(files) // 2
        made = self._decode(files[:middle], windows[:middle])
        made += self._decode(files[middle:], windows[middle:])
        if not short and all(not each.reason for each in made):
            _warn_once(cause)
        return made


@functools.cache
def _warn_once(cause: str) -> None:
    log.warning("DALI decodes in parts what it refuses as a group, which is slow: %s", cause)


def _values(windows: list[Window]) -> dict[str, npt.NDArray[np.int32]]:
    """Returns the windows as inputs of a run, rows before columns."""
    values = np.array(windows, np.int32)
    return {  # DALI takes no other order of memory
        "start": np.ascontiguousarray(values[:, 1::-1]),
        "shape": np.ascontiguousarray(values[:, :1:-1]),
    }


def _defined(backend: Backend, gpu_options: dict[str, object]) -> Pipeline:
    """Returns the graph: decode whole images, then cut the windows.

    Not ``image_slice``: before nvJPEG 13.2 nvImageCodec decodes windows whose chroma is upsampled
    as by libjpeg in a thread of the CPU, and on an H100 it made windows no faster.
    """
    pipeline = backend.pipeline()
    with pipeline:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        window: dict[str, Any] = {
            name: fn.external_source(name=name, dtype=types.INT32, ndim=1)
            for name in ("start", "shape")
        }
        images = fn.decoders.image(
            encoded,
            output_type=types.RGB,
            adjust_orientation=False,  # as Pillow's convert; EXIF is left to the user
            **({"device": "mixed", **gpu_options} if backend.on_gpu else {"device": "cpu"}),
        )
        pipeline.set_outputs(fn.slice(images, axes=[0, 1], **window))
    return pipeline


def _cause(error: RuntimeError) -> str:
    """Returns DALI's message without the traceback of the graph's definition."""
    lines = str(error).partition("encountered:")[2].split("\n") or [str(error)]
    found = [line.strip() for line in lines if line.strip()]
    return found[0] if found else "DALI cannot decode it"

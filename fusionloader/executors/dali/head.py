"""The head: windows of JPEG files, by one prebuilt pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from nvidia.dali import Pipeline, fn, types

from fusionloader.executors import nvjpeg
from fusionloader.executors.dali.head_steps import HeadStep
from fusionloader.executors.dali.memory.borrowing import may_borrow
from fusionloader.executors.dali.memory.unused_memory import release_unused_memory
from fusionloader.executors.dali.prebuilt import Prebuilt
from fusionloader.executors.dali.task import Backend, Image, Input
from fusionloader.executors.device_errors import is_device_lost, is_shortage
from fusionloader.executors.native import jpeg_size, make_executor
from fusionloader.executors.refusals import DecodeFailed, FileRefused
from fusionloader.plan.stages import Plan

_INPUTS = {"start": Input("int32", (2,)), "shape": Input("int32", (2,))}


@dataclass(frozen=True, slots=True)
class DaliDecoded:
    """A sample's pixels, height x width x channels; or ``None`` and the reason why."""

    image: Image
    reason: str = ""


class DaliHead:
    """Decodes windows of JPEG files. It neither resizes nor mirrors: the fused kernel does."""

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
            max_batch: samples of a run; more are done in several.
            threads: that decode.
            hw_decoder_load: the part of the samples for a GPU's hardware decoder.
            fancy_upsampling: whether a GPU interpolates chroma as libjpeg does, or repeats it.
        """
        self._backend = Backend(device, max_batch, threads=threads)
        # Reads headers in 2 us, so that few files that DALI cannot decode get there.
        self._headers = make_executor(Plan((), None, None, None))
        on_gpu: dict[str, object] = {
            "hw_decoder_load": hw_decoder_load,
            "jpeg_fancy_upsampling": fancy_upsampling,
        }
        windows = device is None or not fancy_upsampling or nvjpeg.decodes_windows()
        self._pipeline = Prebuilt(partial(_defined, self._backend, on_gpu, windows))
        self._pipeline.build()

    def run(self, encoded: Sequence[bytes], steps: Sequence[HeadStep]) -> list[DaliDecoded]:
        """The pixels of each file's bytes, or the reason why there are none.

        Images are DALI's tensors, which no later run writes to.

        Raises:
            RuntimeError: there is too little memory, of which more might be borrowed; or the device
                is lost.
        """
        results: list[DaliDecoded] = []
        found = [self._refusal(file, step) for file, step in zip(encoded, steps, strict=True)]
        for reason in found:
            results.append(DaliDecoded(None, reason))
        good = [place for place, reason in enumerate(found) if not reason]
        for begin in range(0, len(good), self._backend.max_batch):
            places = good[begin : begin + self._backend.max_batch]
            files = [np.frombuffer(encoded[place], np.uint8) for place in places]
            made = self._decode(files, [steps[place] for place in places])
            for place, decoded in zip(places, made, strict=True):
                results[place] = decoded
        return results

    def _refusal(self, file: bytes, step: HeadStep) -> str:
        """Why a file must not get to DALI, where one bad sample fails all; empty if it may."""
        size = jpeg_size(self._headers, file)
        if size is None:
            return FileRefused("not a whole JPEG file of 1 or 3 color channels")
        x, y, width, height = step.window
        if min(x, y) < 0 or min(width, height) < 1 or x + width > size[0] or y + height > size[1]:
            return f"the window {step.window} is not within the image of {size[0]} x {size[1]}"
        return ""

    def _decode(
        self, files: Sequence[npt.NDArray[np.uint8]], steps: list[HeadStep]
    ) -> list[DaliDecoded]:
        """One run; if it fails, halves of it, down to the bad files."""
        try:
            (images,) = self._pipeline.run(encoded=files, **_values(steps))
            return [DaliDecoded(image) for image in images]
        except RuntimeError as error:
            short, cause = is_shortage(error), _cause(error)
            if is_device_lost(error) or (short and may_borrow(self._backend.device)):
                raise
        # Outside of the handler, since the error's traceback holds the failed pipeline's memory.
        if short:  # halves need less of it at a time
            release_unused_memory()
        self._pipeline.build()
        if len(files) == 1:
            return [DaliDecoded(None, cause if short else DecodeFailed(cause))]
        middle = len(files) // 2
        first = self._decode(files[:middle], steps[:middle])
        return first + self._decode(files[middle:], steps[middle:])


def _values(steps: list[HeadStep]) -> dict[str, npt.NDArray[np.generic]]:
    values: dict[str, list[object]] = {
        "start": [(step.window[1], step.window[0]) for step in steps],
        "shape": [(step.window[3], step.window[2]) for step in steps],
    }
    return {name: given.array(values[name]) for name, given in _INPUTS.items()}


def _defined(backend: Backend, on_gpu: dict[str, object], windows: bool) -> Pipeline:
    """The graph; without ``windows`` whole images are decoded, and cut afterwards."""
    pipeline = backend.pipeline()
    with pipeline:
        encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
        nodes = {name: given.node(name) for name, given in _INPUTS.items()}
        window: dict[str, Any] = {"start": nodes["start"], "shape": nodes["shape"], "axes": [0, 1]}
        options: dict[str, Any] = {
            "output_type": types.RGB,
            "adjust_orientation": False,  # as Pillow's convert; EXIF's is left to the user
            **({"device": "mixed", **on_gpu} if backend.on_gpu else {"device": "cpu"}),
        }
        if windows:
            images = fn.decoders.image_slice(encoded, **window, **options)
        else:
            images = fn.slice(fn.decoders.image(encoded, **options), **window)
        pipeline.set_outputs(images)
    return pipeline


def _cause(error: RuntimeError) -> str:
    """DALI's message without the traceback of the graph's definition."""
    lines = str(error).partition("encountered:")[2].split("\n") or [str(error)]
    found = [line.strip() for line in lines if line.strip()]
    return found[0] if found else "DALI cannot decode it"

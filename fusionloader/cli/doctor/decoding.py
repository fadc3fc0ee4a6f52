"""How many images a core decodes in a second, against what it is expected to."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from functools import cache

import numpy as np
from PIL import Image

from fusionloader import _native
from fusionloader.cli.dead_leaves import CLASSES, paint
from fusionloader.cli.doctor.check import Check, warn_if
from fusionloader.cli.environment import simd_level
from fusionloader.cli.measure.workloads import pil_transform
from fusionloader.cli.progress import Progress
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.transforms import compile_transform

# The table of docs/observe/doctor.md: images a second and core, by ``simd_level()``.
EXPECTED = {"AVX-512 VBMI": 1750, "AVX-512": 1750, "AVX2": 1650, "SSE4.1": 1250, "none known": 480}
FAR_BELOW = 0.5
_SIZE = (500, 375)
_PASSES = 12
_PER_PASS = 4  # times each photo


def checks() -> Iterator[Check]:
    """Yields the measurement, of CPU time: other processes count little."""
    rate, level = images_per_second(), simd_level()
    expected = EXPECTED.get(level)
    if expected is None:
        yield Check("decoding", f"{rate:,.0f} images/s a core; none are known for {level}")
        return
    yield warn_if(
        rate < FAR_BELOW * expected,
        "decoding",
        f"{rate:,.0f} images/s a core; with {level} about {expected:,} are expected",
        "look for what slows the cores down: top, the frequency (cpupower frequency-info), "
        "an emulated or overcommitted processor",
    )


@cache
def images_per_second() -> float:
    """Returns how many crops of photo-like JPEGs a thread makes in a second of CPU time.

    The best of some passes: what else the core does makes a pass slower, and none faster.
    """
    photos = [photo(label) for label in range(CLASSES)]
    executor = make_executor(compile_transform(pil_transform("default")).plan)
    out = bytearray(executor.result_bytes)
    with Progress("decoding", _PASSES) as progress:
        best = min(_timed_pass(executor, photos, out, progress) for _ in range(_PASSES))
    return len(photos) * _PER_PASS / best


def _timed_pass(
    executor: _native.Executor, photos: list[bytes], out: bytearray, progress: Progress
) -> float:
    """Seconds of CPU time, for the same draws each time."""
    began = time.thread_time()
    for index, photo in enumerate(photos * _PER_PASS):
        if executor.run(photo, 1, 0, index, 0, out) is not _native.RunStatus.OK:
            raise RuntimeError("the native decoder refuses a photo that Pillow has written")
    seconds = time.thread_time() - began
    progress.advance()
    return seconds


def photo(label: int) -> bytes:
    """Returns the JPEG of a photo-like image."""
    pixels = paint(label, *_SIZE, np.random.default_rng(label))
    encoded = io.BytesIO()
    Image.fromarray(pixels).save(encoded, "JPEG", quality=91, subsampling="4:2:0")
    return encoded.getvalue()

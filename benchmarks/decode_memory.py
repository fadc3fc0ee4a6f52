"""One measurement of the imread benchmark's protocol ``decode-memory``, in a process of its own.

The files lie in memory as bytes. Each is decoded once to check the result, once to warm up, and
then in every timed pass, without garbage collection. The process has one core.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jpeg_decoders import DECODERS, Decode

ROOT = Path(__file__).parents[1]


def measured(decoder: str, files: list[Path], passes: int) -> dict[str, Any]:
    """Returns the figures of one fresh process.

    They are the ``seconds`` and ``cpu_seconds`` of each pass, the decoder's ``version``, and the
    largest ``difference`` of the first image from Pillow's pixels; or what is ``missing``, alone.

    Raises:
        RuntimeError: a file cannot be decoded, or the result is not HWC RGB uint8, contiguous.
    """
    order = {"decoder": decoder, "files": [str(path.resolve()) for path in files], "passes": passes}
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.decode_memory"]
    done = subprocess.run(
        command, cwd=ROOT, input=json.dumps(order), capture_output=True, text=True, timeout=600
    )
    if done.returncode != 0:
        raise RuntimeError(f"{decoder} failed:\n{done.stderr}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def check(pixels: Any) -> None:
    """Raises TypeError for what is not an array of RGB bytes, rows first, without gaps."""
    if not isinstance(pixels, np.ndarray):
        raise TypeError(f"expected an array, found {type(pixels).__name__}")
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise TypeError(f"expected HWC RGB uint8, found {pixels.dtype} of shape {pixels.shape}")
    if not pixels.flags.c_contiguous:
        raise TypeError(f"expected contiguous rows, found strides {pixels.strides}")


def timed(decode: Decode, images: list[bytes], passes: int) -> tuple[list[float], list[float]]:
    """Returns wall-clock and CPU seconds of each pass; those of all threads of the process."""
    seconds, cpu_seconds = [], []
    for _ in range(passes):
        gc.collect()
        gc.disable()
        cpu_start, start = time.process_time(), time.perf_counter()
        for image in images:
            decode(image)
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
        gc.enable()
    return seconds, cpu_seconds


def difference(decode: Decode, image: bytes) -> int:
    """Returns how far, in steps of 255, the pixels are at most from Pillow's."""
    expected = DECODERS["pillow"].load()(image)
    return int(np.abs(decode(image).astype(np.int16) - expected).max())


def main() -> None:
    order = json.load(sys.stdin)
    # All decoders have the same core, and none has another for threads that it starts.
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    decoder = DECODERS[order["decoder"]]
    try:
        decode = decoder.load()
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return
    images = [Path(path).read_bytes() for path in order["files"]]
    for image in images:
        check(decode(image))
    timed(decode, images, 1)
    seconds, cpu_seconds = timed(decode, images, order["passes"])
    figures = {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "version": version(decoder.distribution),
        "difference": difference(decode, images[0]),
    }
    print(json.dumps(figures))


def version(distribution: str) -> str:
    """Returns a distribution's version; our own need not be installed as one."""
    if distribution == "fusionloader":
        import fusionloader

        return fusionloader.__version__
    return importlib.metadata.version(distribution)


if __name__ == "__main__":
    main()

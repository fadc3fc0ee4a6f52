"""CPU time to decode the windows of RandomResizedCrop: our decoder against libjpeg-turbo's."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median

from PIL import Image

from benchmarks.study import interleaved, parser_of, publish
from fusionloader import _native
from fusionloader._native import testing
from fusionloader.cli.bench import setting_of

Window = tuple[int, int, int, int]


def window_of(random: Random, width: int, height: int) -> Window:
    """Returns a window as torchvision draws it: x, y, width, height."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        ratio = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return random.randint(0, width - w), random.randint(0, height - h), w, h
    return 0, 0, width, height


def encoded(path: Path, optimise: bool) -> bytes:
    if not optimise:
        return path.read_bytes()
    file = io.BytesIO()
    with Image.open(path) as image:
        image.convert("RGB").save(file, "JPEG", quality=92, optimize=True)
    return file.getvalue()


def pass_over(
    reader: testing.WindowReader, samples: list[tuple[bytes, Window]]
) -> Callable[[], float]:
    """Returns a measurement: milliseconds of one thread's CPU time per window."""

    def once() -> float:
        start = time.thread_time()
        for data, window in samples:
            if not reader.skim(data, *window):
                raise SystemExit("windows: a file is not for the native decoder")
        return (time.thread_time() - start) / len(samples) * 1e3

    return once


def main() -> None:
    parser = parser_of(__doc__, rounds=9)
    parser.add_argument("--files", type=int, default=300, help="files of the corpus to use (300)")
    parser.add_argument(
        "--optimise", action="store_true", help="encode them again, with custom Huffman tables"
    )
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    if setting.root is None:
        raise SystemExit("windows: no images")
    random, samples = Random(1), []
    for path in sorted(setting.root.glob("*/*"))[: options.files]:
        data = encoded(path, options.optimise)
        with Image.open(io.BytesIO(data)) as image:
            samples.append((data, window_of(random, *image.size)))
    readers = {"libjpeg-turbo, partial": testing.WindowReader(testing.BaselineDecoder.LIBJPEG)}
    for level in _native.simd_levels():
        readers[f"own, {level}"] = testing.WindowReader(testing.BaselineDecoder.OWN, level)
    times = interleaved(
        {name: pass_over(r, samples) for name, r in readers.items()}, options.rounds
    )
    base = times["libjpeg-turbo, partial"]
    rows = [
        (
            name,
            f"{median(values):.3f}",
            f"{min(values):.3f}",
            f"{median(b / v for b, v in zip(base, values, strict=True)):.2f}x",
        )
        for name, values in times.items()
    ]
    header = ("decoder", "median ms/window", "least ms/window", "ratio")
    mean_bytes = sum(len(data) for data, _ in samples) / len(samples)
    publish(options, header, rows, times=times, mean_bytes=mean_bytes, corpus=corpus)


if __name__ == "__main__":
    main()

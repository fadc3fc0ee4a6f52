"""CPU time to decode whole JPEG files to RGB: fusionloader.io against the usual libraries."""

from __future__ import annotations

import io
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import cv2
import numpy as np
import simplejpeg
import torch
from PIL import Image
from torchvision.io import decode_image

from benchmarks.study import interleaved, parser_of, publish
from fusionloader.cli.bench import setting_of
from fusionloader.io import decode_jpeg

Decoder = Callable[[bytes], Any]


def with_pillow(content: bytes) -> Any:
    with Image.open(io.BytesIO(content)) as image:
        return np.asarray(image.convert("RGB"))


def with_opencv(content: bytes) -> Any:
    return cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB)


def with_torchvision(content: bytes) -> Any:
    data = torch.frombuffer(bytearray(content), dtype=torch.uint8)
    return decode_image(data, "RGB").permute(1, 2, 0)


DECODERS: dict[str, Decoder] = {
    "pillow": with_pillow,
    "opencv": with_opencv,
    "torchvision": with_torchvision,
    "simplejpeg": simplejpeg.decode_jpeg,
    "fusionloader": decode_jpeg,
}


def pass_over(decode: Decoder, files: list[bytes]) -> Callable[[], float]:
    """Returns a measurement: milliseconds of one thread's CPU time per file."""

    def once() -> float:
        start = time.thread_time()
        for content in files:
            decode(content)
        return (time.thread_time() - start) / len(files) * 1e3

    return once


def progressive(content: bytes) -> bytes:
    file = io.BytesIO()
    with Image.open(io.BytesIO(content)) as image:
        image.convert("RGB").save(file, "JPEG", quality=91, progressive=True)
    return file.getvalue()


def main() -> None:
    parser = parser_of(__doc__, rounds=9)
    parser.add_argument("--files", type=int, default=200, help="files of the corpus to use (200)")
    parser.add_argument("--progressive", action="store_true", help="encode them progressively")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cv2.setNumThreads(0)
    warnings.simplefilter("ignore")  # torchvision's decoder is deprecated
    setting, corpus = setting_of(options, "default")
    paths = sorted(path for path in setting.folder().glob("*/*") if path.is_file())
    files = [path.read_bytes() for path in paths[: options.files]]
    if options.progressive:
        files = [progressive(content) for content in files]
    for content in files:
        expected = with_pillow(content)
        for name, decode in DECODERS.items():
            if not np.array_equal(np.asarray(decode(content)), expected):
                raise SystemExit(f"decoders: {name} gives other pixels than Pillow")
    measured = {name: pass_over(decode, files) for name, decode in DECODERS.items()}
    times = interleaved(measured, options.rounds)
    ours = times["fusionloader"]
    rows = [
        (
            name,
            f"{median(values):.3f}",
            f"{median(v / o for v, o in zip(values, ours, strict=True)):.2f}x",
        )
        for name, values in times.items()
    ]
    mean_bytes = sum(map(len, files)) / len(files)
    header = ("decoder", "ms/file", "of ours")
    publish(options, header, rows, times=times, mean_bytes=mean_bytes, corpus=corpus)


if __name__ == "__main__":
    main()

"""Images a second of the GPU worker's decoders, and how far their pixels are from Pillow's.

Whole images are decoded, and windows of RandomResizedCrop, in groups, as the GPU worker does it.
The device is the CPU where there is no other; a decoder that is not installed is left out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks.study import interleaved, parser_of, publish
from fusionloader import Decoded, GpuWorker
from fusionloader.cli.bench import setting_of
from fusionloader.executors.dali.head_steps import HeadStep, window_of
from fusionloader.executors.decoders.by_name import make_decoder, missing_package
from fusionloader.executors.decoders.decoder_head import DecoderHead, Group
from fusionloader.executors.native import file_decoder, jpeg_size, make_executor
from fusionloader.io import decode_window
from fusionloader.plan.stages import Plan, RandomResizedCrop

NAMES = ("dali", "nvjpeg", "torchvision")
SIDE, RATIO = 224, (3 / 4, 4 / 3)
TIMEOUT = 300.0

Sample = tuple[bytes, HeadStep]


def samples_of(files: Sequence[bytes]) -> dict[str, list[Sample]]:
    """Returns what is decoded: each file as a whole, and a window of it."""
    stage = RandomResizedCrop(SIDE, SIDE, (0.08, 1.0), RATIO, ("bilinear",))
    executor = make_executor(Plan((stage,), None, SIDE, SIDE))
    whole, windows = [], []
    for index, file in enumerate(files):
        size = jpeg_size(file_decoder(), file)
        if size is None:
            continue
        whole.append((file, HeadStep((0, 0, *size), size[1], size[0])))
        windows.append((file, window_of(executor.draw(0, 0, index, 0, *size), *size)[0]))
    return {"whole": whole, "windows": windows}


def groups(head: DecoderHead, samples: Sequence[Sample], size: int) -> Iterator[list[Decoded]]:
    """Decodes ``samples``, two groups at a time; yields the results of each group."""
    begun: deque[Group] = deque()
    for place in range(0, len(samples) + 2 * size, size):
        if part := samples[place : place + size]:
            begun.append(head.begin([file for file, _ in part], [step for _, step in part]))
        if begun and (len(begun) == 2 or not part):
            yield head.finish(begun[0])
            head.release(begun.popleft())


def on_host(image: Any) -> Any:
    if image is None or hasattr(image, "__array_interface__"):
        return None if image is None else np.array(image)
    return torch.as_tensor(image).cpu().numpy()


def pass_over(head: DecoderHead, samples: Sequence[Sample], size: int) -> Callable[[], float]:
    """Returns a measurement: images a second, without the copy to the host."""

    def once() -> float:
        start = time.perf_counter()
        for _ in groups(head, samples, size):
            pass
        return len(samples) / (time.perf_counter() - start)

    return once


def distance(images: Iterable[Any], samples: Sequence[Sample]) -> tuple[float, int, int]:
    """Returns mean and largest difference from Pillow in levels, and how many were not decoded."""
    total, count, most, missing = 0, 0, 0, 0
    for image, (file, step) in zip(images, samples, strict=True):
        if image is None:
            missing += 1
            continue
        x, y, width, height = step.window
        box = (x, y, x + width, y + height)
        exact = decode_window(file, box, (width, height)).astype(int)  # Pillow's pixels
        apart = np.abs(exact - image)
        total, count, most = total + apart.sum(), count + apart.size, max(most, apart.max())
    return float(total / max(count, 1)), int(most), missing


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--files", type=int, default=200, help="files of the corpus to use (200)")
    parser.add_argument("--group", type=int, default=16, help="images in a group (16)")
    parser.add_argument("--threads", type=int, default=1, help="of a decoder on the CPU (1)")
    parser.add_argument("--only", choices=NAMES, help="one decoder alone")
    parser.add_argument("--device", help="cpu, or cuda:0 (where there is one)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    where = torch.device(options.device or ("cuda:0" if torch.cuda.is_available() else "cpu"))
    device = (where.index or 0) if where.type == "cuda" else None
    setting, corpus = setting_of(options, "default")
    paths = sorted(path for path in setting.folder().glob("*/*") if path.is_file())
    kinds = samples_of([path.read_bytes() for path in paths[: options.files]])
    measured: dict[str, Callable[[], float]] = {}
    distances: dict[str, tuple[float, int, int]] = {}
    left_out: dict[str, str] = {}
    for name in (options.only,) if options.only else NAMES:
        if missing := missing_package(GpuWorker(decoder=name)):
            left_out[name] = " ".join(missing)
            continue
        try:
            decoder = make_decoder(name, options.threads, 1.0)
            head = DecoderHead(decoder, device, 2 * options.group, TIMEOUT, name)
            for kind, samples in kinds.items():
                key = f"{name}, {kind}"
                distances[key] = distance(
                    (
                        on_host(found.image)
                        for results in groups(head, samples, options.group)
                        for found in results
                    ),
                    samples,
                )
                measured[key] = pass_over(head, samples, options.group)
        except RuntimeError as error:  # one that does not run here hides no other one's figures
            left_out[name] = str(error)
    rates = interleaved(measured, options.rounds)
    rows = [
        (key, f"{median(values):.0f}", f"{distances[key][0]:.3f}", *map(str, distances[key][1:]))
        for key, values in rates.items()
    ]
    for name, why in left_out.items():
        print(f"left out: {name}: {why}")
    header = ("decoder", "images/s", "mean levels", "most levels", "refused")
    figures = {"rates": rates, "left_out": left_out, "device": str(where), "corpus": corpus}
    publish(options, header, rows, **figures)


if __name__ == "__main__":
    main()

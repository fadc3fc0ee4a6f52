"""Images a second of the GPU worker's decoders, and how far their pixels are from Pillow's.

    python -m benchmarks.gpu_decoders --groups 4,16,64 --engine 1,0 --fancy 1,0 --json FILE

Whole images are decoded, and windows of RandomResizedCrop, in groups, as the GPU worker does it.
The device is the CPU where there is no other; a decoder that is not installed is left out.
Each case is one JSON line, written when it ends: with the nvJPEG behind the decoder, with or
without the hardware engine and libjpeg's chroma upsampling, and with the device's utilisation, of
which ``jpg`` tells whether that engine has worked, and ``sm`` whether the device did.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.dmon import Utilisation
from benchmarks.study import append, parser_of
from fusionloader import Decoded, Decoder, GpuWorker
from fusionloader.cli.bench import setting_of
from fusionloader.cli.environment import provenance
from fusionloader.transforms.executors.decoders.by_name import describe_decoder, missing_package
from fusionloader.transforms.executors.decoders.dali_decoder import DaliDecoder
from fusionloader.transforms.executors.decoders.decoder_head import DecodeGroup, DecoderHead
from fusionloader.transforms.executors.decoders.head_steps import HeadStep, split_window
from fusionloader.transforms.executors.decoders.nvjpeg_decoder import NvjpegDecoder
from fusionloader.transforms.executors.decoders.torchvision_decoder import TorchvisionDecoder
from fusionloader.transforms.executors.native import file_decoder, jpeg_size, make_executor
from fusionloader.transforms.io import decode_window
from fusionloader.transforms.plan.stages import Plan, RandomResizedCrop

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
        windows.append((file, split_window(executor.draw(0, 0, index, 0, *size), *size)[0]))
    return {"whole": whole, "windows": windows}


def groups(head: DecoderHead, samples: Sequence[Sample], size: int) -> Iterator[list[Decoded]]:
    """Decodes ``samples``, two groups at a time; yields the results of each group."""
    begun: deque[DecodeGroup] = deque()
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


def rate(head: DecoderHead, samples: Sequence[Sample], size: int, seconds: float) -> float:
    """Returns images a second, without the copy to the host."""
    begun, images = time.perf_counter(), 0
    while (passed := time.perf_counter() - begun) < seconds:
        for _ in groups(head, samples, size):
            pass
        images += len(samples)
    return images / passed


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


def variants(names: Sequence[str], options: Namespace, on_gpu: bool) -> Iterator[Variant]:
    """Yields decoders; the hardware engine and the upsampling are a GPU's."""
    for name in names:
        if name == "torchvision" or not on_gpu:
            yield Variant(name)
        else:
            for engine, fancy in product(options.engine, options.fancy):
                yield Variant(name, engine, fancy)


@dataclass(frozen=True, slots=True)
class Variant:
    """A decoder, with or without a GPU's hardware engine and libjpeg's chroma upsampling."""

    name: str
    engine: int = 1
    fancy: int = 1

    def decoder(self, threads: int) -> Decoder:
        """Returns it, not started."""
        if self.name == "torchvision":
            return TorchvisionDecoder()
        kind = DaliDecoder if self.name == "dali" else NvjpegDecoder
        return kind(threads, self.engine, bool(self.fancy))


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def main() -> None:
    parser = parser_of(__doc__, rounds=1)
    parser.add_argument("--files", type=int, default=200, help="files of the corpus to use (200)")
    parser.add_argument("--groups", type=numbers, default=[16], help="images in a group (16)")
    parser.add_argument("--engine", type=numbers, default=[1], help="hardware engine: 1, 0 (1)")
    parser.add_argument("--fancy", type=numbers, default=[1], help="libjpeg's chroma: 1, 0 (1)")
    parser.add_argument("--seconds", type=float, default=1.0, help="that count, of a case (1)")
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
    append(options.json, **provenance(), device=str(where), corpus=corpus)
    monitor = Utilisation()
    names = (options.only,) if options.only else NAMES
    try:
        for variant in variants(names, options, device is not None):
            worker = GpuWorker(decoder=variant.name, hw_decoder_load=variant.engine)
            if missing := missing_package(worker):
                append(options.json, **asdict(variant), left_out=" ".join(missing))
                continue
            told = {**asdict(variant), "decodes": describe_decoder(worker, device is not None)}
            for group in options.groups:
                try:
                    for case in cases(variant, kinds, group, device, monitor, options):
                        append(options.json, **told, group=group, **case)
                except RuntimeError as error:  # hides no other one's figures
                    append(options.json, **told, group=group, left_out=str(error)[:500])
    finally:
        monitor.close()


def cases(
    variant: Variant,
    kinds: Mapping[str, Sequence[Sample]],
    group: int,
    device: int | None,
    monitor: Utilisation,
    options: Namespace,
) -> Iterator[dict[str, Any]]:
    """Yields the figures of a decoder, of each kind of samples."""
    head = DecoderHead(variant.decoder(options.threads), device, 2 * group, TIMEOUT, variant.name)
    for kind, samples in kinds.items():
        found = (each for results in groups(head, samples, group) for each in results)
        mean, most, missing = distance((on_host(each.image) for each in found), samples)
        begun = time.monotonic()
        images = rate(head, samples, group, options.seconds)
        yield {
            "kind": kind,
            "rate": round(images, 1),
            "mean_levels": round(mean, 3),
            "most_levels": most,
            "refused": missing,
            "utilisation": monitor.since(begun),
        }
    head.close()


if __name__ == "__main__":
    main()

"""What do open decoders save with frames of many videos, and workers with files of their own?

A sample decodes 1 to 4 frames at random times from one of many MP4 files (H.264) with torchcodec.
First in one process: decoders opened for each sample; kept by ``OpenFiles``, all files at random;
and with the files of one of several workers alone, as if each kept to its own. Then with workers,
where the dataset names the files of its samples, and where it does not. Processor time counts, so
there may be more workers than cores. torchcodec needs FFmpeg's libraries with libx264.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import statistics
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from benchmarks.study import interleaved, parser_of, publish
from fusionloader import FusionLoader
from fusionloader.cli.measure.contenders import close_loader
from fusionloader.data.sources import OpenFiles

Open = Callable[[Path], Any]
_BUDGETS = 16, 64, 200
_DISTINCT = 4  # videos that are encoded; the others are copies
_FPS = 30


def write_videos(folder: Path, options: Namespace) -> list[Path]:
    """Writes videos of moving shapes with some noise."""
    from torchcodec.encoders import VideoEncoder

    height, width = options.height, options.width
    paths = [folder / f"{number}.mp4" for number in range(options.files)]
    for number, path in enumerate(paths):
        if number >= _DISTINCT:
            shutil.copyfile(paths[number % _DISTINCT], path)
            continue
        generator = torch.Generator().manual_seed(number)
        scene = torch.nn.functional.interpolate(
            torch.rand(1, 3, 12, 40, generator=generator), (height, width * 2), mode="bicubic"
        )[0]
        shifts = [width * at // options.length for at in range(options.length)]
        noise = torch.randn(3, height, width, generator=generator) * 0.02
        frames = (scene[:, :, shift : shift + width] + noise.roll(shift, 1) for shift in shifts)
        levels = torch.stack([(frame.clamp(0, 1) * 255).to(torch.uint8) for frame in frames])
        VideoEncoder(levels, frame_rate=_FPS).to_file(
            path,
            codec="libx264",
            pixel_format="yuv420p",
            crf=26,
            preset="fast",
            extra_options={"g": options.keyframes},
        )
    return paths


class Frames(Dataset[torch.Tensor]):
    """Frames at random times; the index of a sample says of which file."""

    def __init__(self, paths: list[Path], options: Namespace, open: Open, most: int) -> None:
        self.paths, self.most = paths, most
        self.count: int = options.count
        self.length: int = options.length
        self.decoders: Any = OpenFiles(open, most) if most else _Opening(open)

    def __len__(self) -> int:
        return self.count

    def file(self, index: int) -> Path:
        return self.paths[index % len(self.paths)]

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = random.Random(index)
        times = [drawn.randrange(self.length) for _ in range(drawn.randint(1, 4))]
        frames: torch.Tensor = self.decoders[self.file(index)].get_frames_at(sorted(times)).data
        return frames[-1]  # all samples have one shape


class NamedFrames(Frames):
    """The same, with the files of samples named."""

    def sample_file(self, index: int) -> Path:
        return self.file(index)


class _Opening:
    def __init__(self, open: Open) -> None:
        self._open = open

    def __getitem__(self, path: Path) -> Any:
        return self._open(path)


def alone(dataset: Frames, part: int) -> Callable[[], float]:
    """Returns what measures the milliseconds of a sample, where all are of ``part`` files."""
    own = [index for index in range(len(dataset)) if index % len(dataset.paths) < part]
    drawn = random.Random(0)

    def once() -> float:
        for path in drawn.sample(dataset.paths[:part], part):  # opens what is to be open
            dataset.decoders[path]
        indices = [drawn.choice(own) for _ in range(len(dataset) // 4)]
        began = time.process_time()
        for index in indices:
            dataset[index]
        milliseconds = (time.process_time() - began) / len(indices) * 1e3
        if isinstance(dataset.decoders, OpenFiles):
            dataset.decoders.close()
        return milliseconds

    return once


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def bytes_of_handle(paths: list[Path], open: Open) -> float:
    """Returns the resident memory of a decoder that has decoded some frames, in a new process."""
    open(paths[0]).get_frames_at([0, 9])
    before, decoders = resident_bytes(), [open(path) for path in paths]
    for decoder in decoders:
        decoder.get_frames_at([0, 9])
    return (resident_bytes() - before) / len(decoders)


def with_workers(
    dataset: Frames, workers: int, options: Namespace
) -> tuple[list[float], float | None]:
    """Returns milliseconds of all workers' processor time of a sample, and the share of opens."""
    loader: Any = FusionLoader(
        dataset, options.batch_size, shuffle=True, num_workers=workers, persistent_workers=True
    )
    counted = []
    for _ in range(options.rounds + 1):
        for _ in loader:
            pass
        counted.append(loader.stats())
    close_loader(loader)
    cpu = [each.processors.cpu_seconds for each in counted]
    values = [(b - a) / len(dataset) * 1e3 for a, b in itertools.pairwise(cpu)]
    first, last = counted[0], counted[-1]
    opened = last.files_opened - first.files_opened
    asked = opened + last.files_reused - first.files_reused
    return values, opened / asked if asked else None


def main() -> None:
    parser = parser_of(__doc__.splitlines()[0] if __doc__ else None, rounds=3)
    parser.add_argument("--files", type=int, default=200, help="video files (200)")
    parser.add_argument("--count", type=int, default=2000, help="samples of an epoch (2000)")
    parser.add_argument("--length", type=int, default=240, help="frames of a video (240)")
    parser.add_argument("--height", type=int, default=256)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--keyframes", type=int, default=2, help="frames from one to the next (2)")
    parser.add_argument("--most", type=int, default=64, help="open files of a worker (64)")
    parser.add_argument("--many", type=int, default=8, help="the larger number of workers (8)")
    parser.add_argument("--seek-mode", default="exact", choices=("exact", "approximate"))
    options = parser.parse_args()
    from torchcodec.decoders import VideoDecoder

    open = partial(VideoDecoder, seek_mode=options.seek_mode)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        paths = write_videos(Path(folder), options)
        measure(options, paths, open)


def measure(options: Namespace, paths: list[Path], open: Open) -> None:
    files, both = len(paths), (options.workers, options.many)
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        handle = process.submit(bytes_of_handle, paths[:50], open).result()
    here = partial(Frames, paths, options, open)
    cases = {"opened each time": alone(here(0), files)}
    for most in _BUDGETS:
        cases[f"{most} open"] = alone(here(most), files)
        for workers in both:
            name = f"{most} open, of the files of one of {workers} workers"
            cases[name] = alone(here(most), files // workers)
    found: dict[str, tuple[list[float], float | None]] = {
        name: (values, None) for name, values in interleaved(cases, options.rounds).items()
    }
    for workers in both:
        for dataset in (here(0), here(options.most)):
            name = f"{workers} workers, {options.most if dataset.most else 'none'} open"
            found[name] = with_workers(dataset, workers, options)
        named = NamedFrames(paths, options, open, options.most)
        found[f"{name}, sample_file"] = with_workers(named, workers, options)
    rows, figures = [], {}
    for name, (values, opened) in found.items():
        ms = statistics.median(values)
        rows.append((name, f"{ms:.2f}", "" if opened is None else f"{opened:.0%}"))
        figures[name] = {"ms": ms, "opened": opened, "all": values}
    publish(options, ("decoders", "ms", "opened"), rows, figures=figures, decoder_bytes=handle)


if __name__ == "__main__":
    main()

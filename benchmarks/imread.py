"""Images a second that one core decodes whole: ``transforms.io`` among Python's JPEG decoders.

The protocol is ``decode-memory`` of the imread benchmark (arXiv 2605.08731), with a fresh process
for each decoder and round.
"""

from __future__ import annotations

import argparse
import io
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.decode_memory import measured
from benchmarks.jpeg_decoders import DECODERS, OURS
from benchmarks.study import parser_of, publish
from fusionloader.cli.bench import setting_of
from fusionloader.cli.corpus import KINDS
from fusionloader.cli.dead_leaves import paint
from fusionloader.cli.progress import Progress

QUALITY = 92  # of the camera's images
# How the camera's images are encoded.
CAMERA: dict[str, dict[str, Any]] = {
    "camera": {"subsampling": "4:2:0"},
    "camera-444": {"subsampling": "4:4:4"},
    "camera-progressive": {"subsampling": "4:2:0", "progressive": True},
}
GIVEN = "given"
Round = dict[str, dict[str, Any]]


def camera_images(count: int, megapixels: float, folder: Path) -> dict[str, list[Path]]:
    """Paints ``count`` images of 4:3 and encodes them in every way; returns the files of each."""
    height = round((megapixels * 1e6 * 3 / 4) ** 0.5)
    width = round(height * 4 / 3)
    files: dict[str, list[Path]] = {name: [] for name in CAMERA}
    with Progress("painting images", count) as progress:
        for number in range(count):
            rng = np.random.default_rng([0, number])
            image = Image.fromarray(paint(number, width, height, rng))
            for name, how in CAMERA.items():
                path = folder / f"{name}-{number}.jpg"
                image.save(path, "JPEG", quality=QUALITY, **how)
                files[name].append(path)
            progress.advance()
    return files


def workloads_of(options: argparse.Namespace, folder: Path) -> dict[str, list[Path]]:
    """Returns the files of every workload: of a given folder or generated, and the camera's."""
    workloads: dict[str, list[Path]] = {}
    for name in [GIVEN] if options.data else list(KINDS):
        flags = argparse.Namespace(**{**vars(options), "corpus": name})
        setting, _ = setting_of(flags, "default")
        found = sorted(path for path in setting.folder().glob("*/*") if path.is_file())
        workloads[name] = found[: options.images]
    return workloads | camera_images(options.camera_images, options.megapixels, folder)


def facts_of(files: list[Path]) -> dict[str, float]:
    """Returns the number of files, and how large they are."""
    pixels = []
    for path in files:
        with Image.open(io.BytesIO(path.read_bytes())) as image:
            pixels.append(image.width * image.height)
    return {
        "files": len(files),
        "mean_bytes": sum(path.stat().st_size for path in files) / len(files),
        "mean_pixels": sum(pixels) / len(pixels),
    }


def rounds_of(
    workloads: dict[str, list[Path]], names: list[str], rounds: int, passes: int
) -> tuple[dict[str, list[Round]], dict[str, str]]:
    """Measures every decoder once a round; returns the rounds of each workload, and who is missing.

    Every other round has the decoders in reverse.
    """
    measurements: dict[str, list[Round]] = {name: [] for name in workloads}
    missing: dict[str, str] = {}
    with Progress("measuring", rounds * len(workloads) * len(names), patience=0) as progress:
        for number in range(rounds):
            for workload, files in workloads.items():
                found: Round = {}
                for name in names if number % 2 == 0 else reversed(names):
                    if name not in missing:
                        figures = measured(name, files, passes)
                        if "missing" in figures:
                            missing[name] = figures["missing"]
                        else:
                            found[name] = figures
                    progress.advance(note=f"{workload}, {name}")
                measurements[workload].append(found)
    return measurements, missing


def ratio(rounds: list[Round], name: str, what: str) -> float:
    """Returns how many times as long as ours a decoder takes: the median over the rounds."""
    return median(median(each[name][what]) / median(each[OURS][what]) for each in rounds)


def rows_of(
    workload: str, rounds: list[Round], files: int, missing: dict[str, str]
) -> list[tuple[str, ...]]:
    """Returns a row for each decoder, the fastest first, and then those that are missing."""

    def milliseconds(name: str, what: str) -> float:
        return median(median(each[name][what]) for each in rounds) / files * 1e3

    rows = []
    for name in sorted(rounds[0], key=lambda name: milliseconds(name, "cpu_seconds")):
        apart = rounds[0][name]["difference"]
        rows.append(
            (
                workload,
                name,
                f"{1e3 / milliseconds(name, 'seconds'):.1f}",
                f"{milliseconds(name, 'cpu_seconds'):.3f}",
                f"{ratio(rounds, name, 'seconds'):.2f}x",
                f"{ratio(rounds, name, 'cpu_seconds'):.2f}x",
                f"up to {apart} apart" if apart else "Pillow's",
            )
        )
    return [*rows, *((workload, name, "not installed", *"----") for name in missing)]


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.set_defaults(images=100)
    parser.add_argument("--decoders", help="names, separated by commas (all)")
    parser.add_argument("--passes", type=int, default=3, help="timed passes of a process (3)")
    parser.add_argument(
        "--camera-images", type=int, default=3, help="images of a camera's size (3)"
    )
    parser.add_argument("--megapixels", type=float, default=12.0, help="their size (12)")
    options = parser.parse_args()
    names = options.decoders.split(",") if options.decoders else list(DECODERS)
    if unknown := set(names) - set(DECODERS):
        raise SystemExit(f"imread: unknown decoders {sorted(unknown)}; there are {list(DECODERS)}")
    names = [name for name in names if name != OURS] + [OURS]
    with tempfile.TemporaryDirectory() as folder:
        workloads = workloads_of(options, Path(folder))
        corpora = {name: facts_of(files) for name, files in workloads.items()}
        measurements, missing = rounds_of(workloads, names, options.rounds, options.passes)
    rows = []
    best = {}
    for workload, rounds in measurements.items():
        rows += rows_of(workload, rounds, len(workloads[workload]), missing)
        others = [name for name in rounds[0] if name != OURS]
        best[workload] = {
            what: min((ratio(rounds, name, what), name) for name in others)
            for what in ("seconds", "cpu_seconds")
            if others
        }
    versions = {
        name: found["version"] for name, found in next(iter(measurements.values()))[0].items()
    }
    header = (
        "workload",
        "decoder",
        "images/s",
        "CPU ms",
        "wall, of ours",
        "CPU, of ours",
        "pixels",
    )
    publish(
        *(options, header, rows),
        corpora=corpora,
        decoder_versions=versions,
        missing=missing,
        best_of_the_others=best,
        measurements=measurements,
    )
    for name, why in missing.items():
        print(f"{name} is not installed: {why}")


if __name__ == "__main__":
    main()

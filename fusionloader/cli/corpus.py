"""A corpus of photo-like JPEGs in ImageFolder layout, made once and cached."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from fusionloader.cli.dead_leaves import CLASSES, paint
from fusionloader.cli.progress import Progress
from fusionloader.system.limits.processors import cores_allowed
from fusionloader.system.user_cache import cache_folder

# Part of the folder's name: increase it when the same arguments paint other files.
VERSION = 1
MANIFEST = "corpus.json"
CHUNK = 8


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of images: common sizes with their shares, the rest drawn from a range of sides.

    ``common`` has (width, height, share); ``long_side`` and ``aspect`` bound the others.
    """

    name: str
    common: tuple[tuple[int, int, float], ...]
    long_side: tuple[int, int]
    aspect: tuple[float, float]
    quality: tuple[int, int]


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "imagenet-like",
            (
                (500, 375, 0.40),
                (375, 500, 0.15),
                (500, 333, 0.12),
                (333, 500, 0.05),
                (500, 500, 0.03),
                (500, 400, 0.03),
            ),
            long_side=(200, 1100),
            aspect=(0.6, 1.0),
            quality=(90, 93),
        ),
        Kind(
            "openimages-like",
            ((1024, 768, 0.45), (1024, 683, 0.25), (768, 1024, 0.12), (683, 1024, 0.08)),
            long_side=(960, 1024),
            aspect=(0.55, 1.0),
            quality=(84, 87),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Corpus:
    """The folders ``train`` and ``val`` under ``root``; the averages are over all files."""

    root: Path
    kind: str
    train_images: int
    val_images: int
    seed: int
    mean_bytes: float
    mean_pixels: float

    @property
    def train(self) -> Path:
        """The folder of the training images, one sub-folder a class."""
        return self.root / "train"

    @property
    def val(self) -> Path:
        """The folder of the validation images, one sub-folder a class."""
        return self.root / "val"


@dataclass(frozen=True, slots=True)
class _ImageSpec:
    """One image to paint, which these values determine."""

    path: Path
    kind: str
    split: int
    number: int
    seed: int


def ensure_corpus(
    images: int,
    *,
    val_images: int | None = None,
    kind: str = "imagenet-like",
    seed: int = 0,
    folder: Path | None = None,
    processes: int | None = None,
) -> Corpus:
    """Returns the corpus with ``images`` training images under ``folder``; makes it if missing.

    The same arguments give the same files. ``val_images`` defaults to a tenth of ``images``. The
    images are painted into a temporary folder that is renamed at the end, so that an interrupted
    run leaves no incomplete corpus.
    """
    if images < CLASSES:
        raise ValueError(f"a corpus needs at least one image a class ({CLASSES}), not {images}")
    if kind not in KINDS:
        raise ValueError(f"unknown kind of corpus {kind!r}; there are: {', '.join(KINDS)}")
    val_images = max(CLASSES, images // 10) if val_images is None else val_images
    parent = cache_folder() if folder is None else folder
    root = parent / f"{kind}-{images}-{val_images}-seed{seed}-v{VERSION}"
    if not (root / MANIFEST).is_file():
        _make(root, kind, images, val_images, seed, processes or cores_allowed())
    facts = json.loads((root / MANIFEST).read_text())
    return Corpus(root=root, **facts)


def _make(
    root: Path, kind: str, train_images: int, val_images: int, seed: int, processes: int
) -> None:
    root.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(root)
    partial = root.with_name(f"{root.name}.partial-{os.getpid()}")
    try:
        specs = [
            *_image_specs(partial / "train", kind, 0, train_images, seed),
            *_image_specs(partial / "val", kind, 1, val_images, seed),
        ]
        sizes = _paint_all(specs, processes)
        corpus = Corpus(
            root,
            kind,
            train_images,
            val_images,
            seed,
            mean_bytes=sum(s[0] for s in sizes) / len(sizes),
            mean_pixels=sum(s[1] for s in sizes) / len(sizes),
        )
        facts = {name: value for name, value in asdict(corpus).items() if name != "root"}
        (partial / MANIFEST).write_text(json.dumps(facts, indent=2) + "\n")
        _publish(partial, root)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _publish(partial: Path, root: Path) -> None:
    """Renames the finished folder, unless another process was faster with the same files."""
    try:
        partial.rename(root)
    except OSError:
        if not (root / MANIFEST).is_file():
            raise


def _remove_abandoned(root: Path) -> None:
    """Deletes partial folders of processes that have died."""
    for partial in root.parent.glob(f"{root.name}.partial-*"):
        maker = partial.name.rpartition("-")[2]
        if maker.isdigit() and not Path("/proc", maker).exists():
            shutil.rmtree(partial, ignore_errors=True)


def _image_specs(folder: Path, kind: str, split: int, images: int, seed: int) -> list[_ImageSpec]:
    """Returns the images of one split, assigned to the classes round-robin; makes the folders."""
    for label in range(CLASSES):
        (folder / f"class{label}").mkdir(parents=True)
    return [
        _ImageSpec(
            folder / f"class{number % CLASSES}" / f"{number:06d}.jpg", kind, split, number, seed
        )
        for number in range(images)
    ]


def _paint_all(specs: list[_ImageSpec], processes: int) -> list[tuple[int, int]]:
    """Paints in separate processes; returns (bytes, pixels) of every image, in order."""
    # Spawned: the caller may have threads (torch, CUDA) that are not safe to fork.
    context = multiprocessing.get_context("spawn")
    chunks = [specs[start : start + CHUNK] for start in range(0, len(specs), CHUNK)]
    sizes: list[tuple[int, int]] = []
    with (
        Progress("painting images", len(specs)) as progress,
        ProcessPoolExecutor(processes, mp_context=context) as pool,
    ):
        for done in pool.map(_paint_chunk, chunks):
            sizes += done
            progress.advance(len(done))
    return sizes


def _paint_chunk(specs: list[_ImageSpec]) -> list[tuple[int, int]]:
    return [_paint_one(spec) for spec in specs]


def _paint_one(spec: _ImageSpec) -> tuple[int, int]:
    kind = KINDS[spec.kind]
    rng = np.random.default_rng([spec.seed, spec.split, spec.number])
    width, height = _draw_size(kind, rng)
    quality = int(rng.integers(kind.quality[0], kind.quality[1] + 1))
    pixels = paint(spec.number % CLASSES, width, height, rng)
    Image.fromarray(pixels).save(spec.path, "JPEG", quality=quality, subsampling="4:2:0")
    return spec.path.stat().st_size, width * height


def _draw_size(kind: Kind, rng: np.random.Generator) -> tuple[int, int]:
    """Returns width and height in pixels: one of the common sizes, or else a random one."""
    position = rng.random()
    for width, height, share in kind.common:
        position -= share
        if position < 0:
            return width, height
    # Uniform in the logarithm: small images are more common than large ones.
    low, high = kind.long_side
    long_side = round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))
    short_side = round(long_side * float(rng.uniform(*kind.aspect)))
    return (long_side, short_side) if rng.random() < 0.7 else (short_side, long_side)

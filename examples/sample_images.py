"""Images for the scripts: your own folder, or small JPEGs in ``ImageFolder`` layout.

Each class has a color of its own under noise, so that a model can learn it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 10
WIDTH, HEIGHT = 160, 120


def parser_of(doc: str | None, images: int = 200) -> argparse.ArgumentParser:
    """Returns a parser with the options of all scripts; ``doc`` is what a script says of itself."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data", type=Path, help="folder of class folders, or of train/ and val/ with those"
    )
    parser.add_argument(
        "--images", type=int, default=images, help=f"to make without --data ({images})"
    )
    return parser


def data_folder(options: argparse.Namespace, split: str = "train") -> Path:
    """Returns the folder of class folders that a script's options say."""
    if options.data is None:
        few = max(20, options.images // 10)
        return image_folder(options.images if split == "train" else few, split)
    folder = Path(options.data)
    return folder / split if (folder / split).is_dir() else folder


def image_folder(images: int, split: str = "train") -> Path:
    """Returns a folder of ``images`` JPEGs in ten classes, made once below the temp folder."""
    folder = Path(tempfile.gettempdir(), "fusionloader-examples", f"{split}-{images}")
    if not folder.is_dir():
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        write_images(partial, images, seed=int(split != "train"))
        try:
            partial.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(partial)
    return folder


def write_images(folder: Path, images: int, seed: int) -> None:
    """Writes ``images`` JPEGs of 160 x 120 pixels to ``folder/class<n>``."""
    generator = np.random.default_rng(seed)
    colors = np.random.default_rng(CLASSES).integers(40, 215, (CLASSES, 3))
    for number in range(images):
        label = number % CLASSES
        coarse = colors[label] + generator.integers(-40, 41, (HEIGHT // 8, WIDTH // 8, 3))
        image = Image.fromarray(coarse.astype(np.uint8)).resize((WIDTH, HEIGHT), Image.BICUBIC)
        path = folder / f"class{label}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path, quality=90)

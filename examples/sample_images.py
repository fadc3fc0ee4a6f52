"""Small JPEGs in ``ImageFolder`` layout, for scripts that are started without images of yours.

Each class has a color of its own with noise over it, so that there is something to learn.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = 10
WIDTH, HEIGHT = 160, 120


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

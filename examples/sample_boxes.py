"""Small photos with boxes in the layout of Pascal VOC, for scripts that detect objects.

Each image has one or two rectangles of a class's color on noise.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
from PIL import Image

WIDTH, HEIGHT = 160, 120
COLORS = {"cat": (200, 60, 60), "dog": (60, 200, 60), "car": (60, 60, 200)}


def voc_folder(options: argparse.Namespace) -> Path:
    """Returns the folder that holds ``VOCdevkit``: that of ``--data``, or one made once."""
    if options.data is not None:
        return Path(options.data)
    folder = Path(tempfile.gettempdir(), "fusionloader-examples", f"voc-{options.images}")
    if not folder.is_dir():
        partial = folder.with_name(f"{folder.name}.{os.getpid()}")
        write_voc(partial, options.images)
        try:
            partial.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(partial)
    return folder


def write_voc(folder: Path, images: int) -> None:
    """Writes ``images`` JPEGs of 160 x 120 pixels, and their boxes, as VOC's year 2012 has them."""
    year = folder / "VOCdevkit" / "VOC2012"
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (year / part).mkdir(parents=True)
    generator = np.random.default_rng(0)
    names = [f"2012_{number:06d}" for number in range(images)]
    for name in names:
        pixels = generator.integers(90, 160, (HEIGHT, WIDTH, 3)).astype(np.uint8)
        root = ElementTree.Element("annotation")
        for _ in range(generator.integers(1, 3)):
            kind = str(generator.choice(list(COLORS)))
            left, top = (int(generator.integers(1, most - 50)) for most in (WIDTH, HEIGHT))
            right, bottom = (start + int(generator.integers(24, 48)) for start in (left, top))
            pixels[top:bottom, left:right] = COLORS[kind]
            found = ElementTree.SubElement(root, "object")
            ElementTree.SubElement(found, "name").text = kind
            box = ElementTree.SubElement(found, "bndbox")
            for side, place in zip(
                ("xmin", "ymin", "xmax", "ymax"), (left, top, right, bottom), strict=True
            ):
                ElementTree.SubElement(box, side).text = str(place)
        Image.fromarray(pixels).save(year / "JPEGImages" / f"{name}.jpg", quality=90)
        ElementTree.ElementTree(root).write(year / "Annotations" / f"{name}.xml")
    (year / "ImageSets" / "Main" / "train.txt").write_text("\n".join(names) + "\n")

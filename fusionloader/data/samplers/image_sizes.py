"""Widths and heights of image files, read from their headers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch.utils.data import Subset

_TOGETHER = 256  # files per task of a thread
Path = str | os.PathLike[str]


def image_sizes(images: Any, *, threads: int = 8) -> NDArray[np.int32]:
    """Returns width and height of image files, without decoding them.

    The sizes are of the stored pixels. The orientation in Exif data is not applied, as in
    torchvision's folders.

    Args:
        images: an ``ImageFolder`` or another dataset with ``samples``, a ``Subset`` of one, or
            a sequence of paths.
        threads: number of threads that read files.

    Returns:
        An int32 array of shape (n, 2): width and height, in the order of the dataset's indices.

    Raises:
        ValueError: a file is not an image that Pillow knows; the message names it.
        OSError: a file cannot be read.
        TypeError: the dataset has no file names.
    """
    paths = _paths(images)
    sizes = np.empty((len(paths), 2), np.int32)

    def read(start: int) -> None:
        for place in range(start, min(start + _TOGETHER, len(paths))):
            sizes[place] = _size(place, paths[place])

    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(read, range(0, len(paths), _TOGETHER)):
            pass
    return sizes


def _paths(images: Any) -> Sequence[Path]:
    if isinstance(images, Subset):
        inner = _paths(images.dataset)
        return [inner[images.indices[place]] for place in range(len(images))]
    samples = getattr(images, "samples", None)
    if samples is not None:
        return [path for path, *_ in samples]
    if isinstance(images, Sequence) and not isinstance(images, (str, bytes)):
        return images
    raise TypeError(
        f"a {type(images).__name__} does not name its files: give their paths, or a dataset with "
        "samples, as ImageFolder has them"
    )


def _size(place: int, path: Path) -> tuple[int, int]:
    try:
        with Image.open(path) as image:
            return image.size
    except UnidentifiedImageError as error:
        raise ValueError(
            f"sample {place} ({os.fspath(path)}) is no image that Pillow knows: leave it out, or "
            "give sizes from elsewhere"
        ) from error

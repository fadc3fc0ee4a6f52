"""Tar archives of images for tests, made by Python's tarfile as webdataset names members."""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Iterable, Sequence

from PIL import Image


def tar_of(members: Iterable[tuple[str, bytes]], format: int = tarfile.USTAR_FORMAT) -> bytes:
    """Returns an archive."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


def jpeg(seed: int, size: tuple[int, int] = (48, 40)) -> bytes:
    """Returns an image that differs from those of other seeds."""
    draw = random.Random(seed)
    small = Image.frombytes("RGB", (6, 5), draw.randbytes(6 * 5 * 3))
    file = io.BytesIO()
    small.resize(size, Image.Resampling.BICUBIC).save(file, "JPEG", quality=88)
    return file.getvalue()


def image_shards(counts: Sequence[int]) -> dict[str, bytes]:
    """Returns archives ``train-000.tar``, ...; the sample of number n has target n."""
    shards, first = {}, 0
    for number, count in enumerate(counts):
        members = []
        for sample in range(first, first + count):
            members.append((f"{sample:06d}.jpg", jpeg(sample)))
            members.append((f"{sample:06d}.cls", str(sample).encode()))
        shards[f"train-{number:03d}.tar"] = tar_of(members)
        first += count
    return shards

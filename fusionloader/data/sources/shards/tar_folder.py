"""Images in local tar archives of WebDataset's format, read without unpacking."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from fusionloader.data.sources.byte_ranges import ByteRanges
from fusionloader.data.sources.encoded_images import EncodedImages, Transform
from fusionloader.data.sources.ranged_samples import ShardTargets, are_int64, joined
from fusionloader.data.sources.shards.shard_paths import Paths, shard_paths
from fusionloader.data.sources.shards.tar_local_index import MemberNames, local_index
from fusionloader.data.sources.shards.tar_members import BadTarSample, ShardError
from fusionloader.data.sources.shards.tar_samples import MemberChoice, ShardSamples, group_samples
from fusionloader.system.amounts import counted

_THREADS = 4  # archives indexed at a time: the headers of each are read one after the other


class TarFolder(EncodedImages):
    """Encoded images in local tar archives, with a member for the target of each.

    Members with the same name up to the first dot form a sample. The archives are indexed once.

    Attributes:
        classes: texts of targets in sorted order; ``None`` if targets are integers.
        class_to_idx: the target of each text; ``None`` if targets are integers.
    """

    def __init__(
        self,
        shards: Paths,
        *,
        image: str = "jpg;jpeg;png;webp",
        target: str | None = "cls",
        transform: Transform | None = None,
        target_transform: Transform | None = None,
    ) -> None:
        """Indexes archives that have no index.

        Args:
            shards: a path, a folder, a pattern (``train-{000..146}.tar``), a list of these, or a
                list of shards by wids (``.json``).
            image: extensions of images, in order of preference.
            target: extension of targets: integers, or texts, which become class numbers;
                ``"json:label"`` for a key in JSON; ``None`` for the target -1.
            transform: transform of an image.
            target_transform: transform of a target as it is written in the archive.

        Raises:
            ShardError: an archive is damaged or empty, or a sample lacks a member or has it twice.
            FileNotFoundError: an archive does not exist.
        """
        paths, counts = _find_shards(shards)
        extension, _, key = (target or "").partition(":")
        choice = MemberChoice.of(image, extension or None)
        with ThreadPoolExecutor(min(_THREADS, len(paths))) as pool:
            found = list(pool.map(lambda path: _samples(path, choice), paths))
        parts = [samples for samples, _, _ in found]
        _check_counts(paths, counts, parts)
        targets = joined([samples.targets for samples in parts])
        if key:
            targets = _at_key(targets, key, paths, parts)
        self.classes: list[str] | None = None
        self.class_to_idx: dict[str, int] | None = None
        if target_transform is None and isinstance(targets, list):
            targets = self._classified(targets)
        lengths = [len(samples.offset) for samples in parts]
        super().__init__(
            ByteRanges(
                paths,
                np.repeat(np.arange(len(paths), dtype=np.uint32), lengths),
                np.concatenate([samples.offset for samples in parts]),
                np.concatenate([samples.nbytes for samples in parts]),
                stamps=np.array([stamp for _, stamp, _ in found], np.int64),
            ),
            targets,
            transform=transform,
            target_transform=target_transform,
            names=MemberNames({path: at for path, (_, _, at) in zip(paths, found, strict=True)}),
        )

    def describe(self) -> str:
        archives = counted(len(self.byte_ranges().files), "archive")
        return f"{counted(len(self), 'member')} of {archives}, by their indexes"

    def _classified(self, targets: list[Any]) -> ShardTargets:
        if are_int64(targets):
            return np.array(targets, np.int64)
        kinds = set(map(type, targets))
        if kinds != {str}:
            names = ", ".join(sorted(kind.__name__ for kind in kinds))
            raise BadTarSample(
                f"targets are {names}, and should be integers of 64 bits or texts: give a "
                'target_transform, or name a key by target="json:KEY"'
            )
        self.classes = sorted(set(targets))
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        return np.array([self.class_to_idx[name] for name in targets], np.int64)


def _samples(path: str, choice: MemberChoice) -> tuple[ShardSamples, tuple[int, int], str | None]:
    """Returns the samples of an archive, its stamp when it was indexed, and its index's path."""
    local = local_index(path, choice)
    samples = group_samples(local.index.members(), choice, path)
    return samples, (local.index.shard_bytes, local.index.shard_version), local.path


def _find_shards(shards: Paths) -> tuple[tuple[str, ...], list[int | None]]:
    """Returns the paths of archives, and the numbers of their samples in a list of wids."""
    if not isinstance(shards, (str, os.PathLike)) or not os.fspath(shards).endswith(".json"):
        paths = shard_paths(shards, ".tar")
        return paths, [None] * len(paths)
    listed = Path(shards)
    try:
        entries = json.loads(listed.read_text())["shardlist"]
        urls = [str(entry["url"]) for entry in entries]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ShardError(
            f"{str(listed)!r} is no list of shards by wids ({error!r}): give the archives"
        ) from error
    paths = shard_paths([os.path.join(listed.parent, url) for url in urls], ".tar")
    return paths, [entry.get("nsamples") for entry in entries]


def _check_counts(
    paths: Sequence[str], counts: Sequence[int | None], parts: Sequence[ShardSamples]
) -> None:
    for path, count, samples in zip(paths, counts, parts, strict=True):
        if count is not None and count != len(samples.offset):
            raise ShardError(
                f"{path}: has {len(samples.offset)} samples, and the list says {count}: write the "
                "list again, or give the archives"
            )


def _at_key(
    targets: ShardTargets, key: str, paths: Sequence[str], parts: Sequence[ShardSamples]
) -> ShardTargets:
    """Returns the values of a key in decoded JSON, such as ``"label"`` or ``"meta.label"``."""
    found: list[Any] = list(targets)
    for part in key.split("."):
        for number, value in enumerate(found):
            if not isinstance(value, dict) or part not in value:
                ends = np.cumsum([len(samples.offset) for samples in parts])
                shard = paths[int(np.searchsorted(ends, number, "right"))]
                has = ", ".join(map(repr, value)) if isinstance(value, dict) else repr(value)
                raise BadTarSample(
                    f"{shard}: the target of sample {number} has no key {part!r}, it has {has}: "
                    'name another by target="json:KEY"'
                )
            found[number] = value[part]
    return np.array(found, np.int64) if are_int64(found) else found

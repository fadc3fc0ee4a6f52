"""Groups the members of an archive to samples by their names up to the first dot, as webdataset."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fusionloader.data.sources.ranged_samples import are_int64, no_targets
from fusionloader.data.sources.shards.tar_index import TarIndex
from fusionloader.data.sources.shards.tar_members import (
    INLINE_BYTES,
    BadTarSample,
    ShardError,
    TarMember,
    as_text,
    extension,
)

_MOST_IMAGE_BYTES = 1 << 32
_INTEGER = re.compile(rb"\s*[+-]?\d+\s*")


@dataclass(frozen=True, slots=True, eq=False)
class ShardSamples:
    """The samples of one archive, in the order of its images.

    Attributes:
        offset: uint64 of N, offset of each image.
        nbytes: uint32 of N, size of each image.
        targets: int64 of N, or a list if they are not all integers.
    """

    offset: npt.NDArray[np.uint64]
    nbytes: npt.NDArray[np.uint32]
    targets: npt.NDArray[np.int64] | list[Any]


@dataclass(frozen=True, slots=True)
class MemberChoice:
    """The extensions of the members that are a sample's image and target.

    Attributes:
        images: extensions of images in lower case, in order of preference.
        target: extension of targets; ``""`` for samples without, whose target is -1.
    """

    images: tuple[str, ...]
    target: str

    @classmethod
    def of(cls, image: str, target: str | None) -> MemberChoice:
        """Returns the choice of ``image="jpg;png"`` and ``target="cls"``.

        Raises:
            ValueError: an extension is empty.
        """
        images = tuple(part.strip().lstrip(".").lower() for part in image.split(";"))
        if not all(images):
            raise ValueError(
                f"image={image!r} should be extensions with semicolons between: 'jpg;jpeg;png'"
            )
        return cls(images, (target or "").strip().lstrip(".").lower())

    @property
    def inline(self) -> frozenset[bytes]:
        """Extensions of members whose content an index must have."""
        return INLINE_EXTENSIONS | ({self.target.encode()} if self.target else frozenset())


INLINE_EXTENSIONS = frozenset((b"cls", b"cls2", b"index", b"inx", b"id", b"txt", b"json"))
"""Usual extensions of targets, whose contents every index has."""


def has_targets(index: TarIndex, choice: MemberChoice) -> bool:
    """Whether an index has the contents of all targets that are small enough."""
    wanted = choice.target.encode()
    small = (index.inline_nbytes < 0) & (index.nbytes <= INLINE_BYTES)
    if not wanted or not small.any():
        return True
    members = index.members()
    return not any(extension(members[number].name) == wanted for number in small.nonzero()[0])


def group_samples(members: Sequence[TarMember], choice: MemberChoice, shard: str) -> ShardSamples:
    """Groups members to samples.

    Members without extension, and those whose base name begins with a dot, are ignored.

    Args:
        members: members of the archive, in order.
        choice: extensions of images and targets.
        shard: path or URL of the archive, for messages.

    Raises:
        BadTarSample: an image has no target or more than one, a target has no image, or an image
            is empty or too large.
        ShardError: the archive has no image.
    """
    images: dict[bytes, TarMember] = {}
    targets: dict[bytes, TarMember] = {}
    ranks = {name.encode(): rank for rank, name in enumerate(choice.images)}
    target_extension = choice.target.encode()
    seen: set[tuple[bytes, bytes]] = set()
    for member in members:
        folder, slash, base = member.name.rpartition(b"/")
        stem, dot, _ = base.partition(b".")
        if not stem or not dot:
            continue
        key, kind = folder + slash + stem, extension(member.name)
        if kind not in ranks and kind != target_extension:
            continue
        if (key, kind) in seen:
            raise BadTarSample(
                f"{shard}: the sample {as_text(key)!r} has two members {as_text(kind)!r}: samples "
                "need keys of their own, write the archive without the duplicate"
            )
        seen.add((key, kind))
        if kind == target_extension:
            targets[key] = member
        if kind in ranks:
            before = images.get(key)
            if before is None or ranks[kind] < ranks[extension(before.name)]:
                images[key] = member
    if not images:
        raise ShardError(_nothing(members, choice, shard))
    _check(images, targets, choice, shard)
    chosen = list(images.values())
    values = [_target(targets[key], key, shard) for key in images] if choice.target else None
    whole = no_targets(len(chosen)) if values is None else _integers(values)
    return ShardSamples(
        np.array([member.offset for member in chosen], np.uint64),
        np.array([member.nbytes for member in chosen], np.uint32),
        whole if whole is not None else values or [],
    )


def _check(
    images: dict[bytes, TarMember],
    targets: dict[bytes, TarMember],
    choice: MemberChoice,
    shard: str,
) -> None:
    kinds = ";".join(choice.images)
    for key, member in images.items():
        if not 0 < member.nbytes < _MOST_IMAGE_BYTES:
            raise BadTarSample(f"{shard}: the image of {as_text(key)!r} has {member.nbytes} bytes")
        if choice.target and key not in targets:
            raise BadTarSample(
                f"{shard}: the sample {as_text(key)!r} has an image and no member "
                f"{choice.target!r}: add it, name another with target=..., or say target=None"
            )
    if (alone := next((key for key in targets if key not in images), None)) is not None:
        raise BadTarSample(
            f"{shard}: the sample {as_text(alone)!r} has a target {choice.target!r} and no image "
            f"({kinds}): add it, or name its extension with image=..."
        )


def _target(member: TarMember, key: bytes, shard: str) -> Any:
    """Returns a target as an integer, decoded JSON, or else text."""
    content = member.content
    if content is None:
        again = "write the index again with --target, or " * (member.nbytes <= INLINE_BYTES)
        raise BadTarSample(
            f"{shard}: the target {as_text(extension(member.name))!r} of {as_text(key)!r} has "
            f"{member.nbytes} bytes and is not in the index, which keeps those of at most "
            f"{INLINE_BYTES}: {again}use smaller targets"
        )
    if _INTEGER.fullmatch(content):
        return int(content)
    try:
        if extension(member.name).endswith(b"json"):
            return json.loads(content)
        return content.decode()
    except (ValueError, RecursionError) as error:
        raise BadTarSample(
            f"{shard}: the target of {as_text(key)!r} cannot be read ({error}): write it as text"
        ) from error


def _integers(values: Sequence[Any]) -> npt.NDArray[np.int64] | None:
    return np.array(values, np.int64) if are_int64(values) else None


def _nothing(members: Sequence[TarMember], choice: MemberChoice, shard: str) -> str:
    if not members:
        return f"{shard}: the archive is empty: leave it out, or write it again"
    found = sorted({as_text(extension(member.name)) for member in members})
    return (
        f"{shard}: no member has the extension of an image ({';'.join(choice.images)}), there are "
        f"{', '.join(map(repr, found[:8]))}: name the right one with image=..."
    )

"""What ``on_error`` does with a sample that cannot be made: raise, leave out, or substitute."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Generic, TypeVar

from fusionloader.workers.messages import Failure

if TYPE_CHECKING:
    from fusionloader.options import OnError

ATTEMPTS = 10
Sample = TypeVar("Sample")


class BadSample(Exception):
    """A sample is bad, and its tiny-batch fails with it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Replacement(Generic[Sample]):
    """A sample in place of a bad one, and its index; both ``None`` where that one is left out."""

    sample: Sample | None
    index: int | None


def resolve(
    on_error: OnError,
    failure: Failure,
    draws: tuple[int, int, int, int],
    count: int,
    load: Callable[[int], Sample],
) -> Replacement[Sample]:
    """Returns what takes the place of a bad sample.

    Args:
        on_error: as the loader has it.
        failure: of the sample.
        draws: seed, epoch, key and occurrence of the sample.
        count: of samples in the dataset, 0 if it does not know.
        load: makes the sample of an index, with the draws of the bad one.

    Raises:
        BadSample: errors are to be raised, or no substitute was found.
    """
    if on_error == "skip":
        return Replacement(None, None)
    if on_error == "raise" or count == 0:
        raise BadSample(failure)
    for index in substitutes(*draws, count):
        try:
            return Replacement(load(index), index)
        except Exception:  # noqa: S112 - the first error is the one that is told
            continue
    text = f"{ATTEMPTS} samples drawn as substitutes were bad too.\n{failure.text}"
    raise BadSample(replace(failure, text=text))


def substitutes(seed: int, epoch: int, key: int, occurrence: int, count: int) -> Iterator[int]:
    """Yields ``ATTEMPTS`` indices below ``count`` to try: the same ones in every run."""
    for attempt in range(ATTEMPTS):
        words = struct.pack("<5Q", seed, epoch, key, occurrence, attempt)
        digest = hashlib.blake2b(words, digest_size=8).digest()
        yield int.from_bytes(digest, "little") % count

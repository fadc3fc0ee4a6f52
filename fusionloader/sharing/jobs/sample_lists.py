"""The samples of a mini-batch as bytes, the same bytes in all jobs that submit the same samples."""

from __future__ import annotations

from array import array
from typing import NamedTuple

_KEYS, _OCCURRENCES = 1, 2


class SampleLists(NamedTuple):
    """The fields of a ``MiniBatch`` that workers need."""

    items: list[int]
    keys: list[int]
    occurrences: list[int]
    rows: list[int]
    pickled: bytes = b""


def pack(samples: SampleLists) -> bytes:
    """Returns the lists as bytes, without keys that equal the items and occurrences of zeros."""
    items, keys, occurrences, rows, pickled = samples
    with_keys, with_occurrences = keys != items, any(occurrences)
    flags = _KEYS * with_keys + _OCCURRENCES * with_occurrences
    parts = [array("Q", [len(items), flags]), array("q", items)]
    if with_keys:
        parts.append(array("Q", keys))
    if with_occurrences:
        parts.append(array("I", occurrences))
    return b"".join(part.tobytes() for part in [*parts, array("I", rows)]) + pickled


def identity(raw: bytes) -> bytes:
    """Returns the part that has to be equal in all jobs: all but the rows and pickled indices.

    Rows are ordered by the sizes of files, which a job learns while its workers read them. Keys
    tell indices apart; their pickles may differ.
    """
    count, flags = array("Q", raw[:16])
    per_sample = 8 * (1 + bool(flags & _KEYS)) + 4 * bool(flags & _OCCURRENCES)
    return raw[: 16 + count * per_sample]


def first_items(raw: bytes, most: int = 4) -> list[int]:
    """Returns the first items of packed lists, which may be cut off behind them."""
    (count,) = array("Q", raw[:8])
    return array("q", raw[16 : 16 + 8 * min(count, most)]).tolist()


def unpack(raw: bytes) -> SampleLists:
    """Undoes ``pack``.

    Raises:
        ValueError: ``raw`` is cut off.
    """
    count, flags = array("Q", raw[:16])
    at = 16

    def take(kind: str) -> list[int]:
        nonlocal at
        found = array(kind)
        end = at + count * found.itemsize
        found.frombytes(raw[at:end])
        if len(found) != count:
            raise ValueError("a list of samples is cut off")
        at = end
        return found.tolist()

    items = take("q")
    keys = take("Q") if flags & _KEYS else items
    occurrences = take("I") if flags & _OCCURRENCES else [0] * count
    return SampleLists(items, keys, occurrences, take("I"), raw[at:])

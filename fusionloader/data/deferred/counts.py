"""Counters of deferred images in this process."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, TypeVar

from fusionloader.system.shm import cache_counts
from fusionloader.transforms.plan.parts import FIRST_STAGE, PASSES, READ, Spent

log = logging.getLogger("fusionloader.loader")

_FAILED = (
    "FusionLoader has failed in place of %s: %s. The library's own code did the operation, and "
    "training goes on. Please report this line. deferred_images='off' leaves images to Pillow."
)

_REPEATED = (
    "a sample was made again because its code fails with %s: %s. Such tensors are deferred no more "
    "in this worker. deferred_images='auto' never defers them."
)
REPEATED = "deferred tensors"  # what failed in ``Counts.failed``, and is no bug

# Names with a word in shared memory, in the order of the words; other counts are sent.
RESULTS = ("tensor", "array", "pixels")
COLLATED = ("in place", "copied", "kept by user code")
PROCESSED = ("replayed", "run")
OPERATIONS = (
    *("crop", "resize", "hflip", "vflip", "affine", "perspective", "rotate", "pad", "blur"),
    *("box_blur", "brightness", "contrast", "saturation", "hue", "sharpness", "posterize"),
    *("solarize", "invert", "autocontrast", "equalize", "grayscale"),
    *("reduce", "lookup", "channels"),
)
NATIVE = (
    *("adjust_brightness", "adjust_contrast", "adjust_saturation", "adjust_sharpness"),
    *("adjust_hue", "rgb_to_grayscale", "to_dtype", "normalize", "gaussian_blur"),
)

# Attributes of ``Counts`` that are counters, in the order of their declaration.
_COUNTERS = ("left", "recorded", "native", "processed", "results", "collated", "ended")

Content = TypeVar("Content", bytes, memoryview)


@dataclass(slots=True)
class Counts:
    """Counters since the last ``take``.

    Attributes:
        files: number of image files whose pixels were deferred.
        left: number of files decoded by Pillow, or by the library that was called, and of calls on
            tensors that are left to torchvision as torch rounds otherwise, by reason.
        recorded: number of operations, by name.
        native: number of calls of torchvision's functions on plain tensors that ran natively, by
            name.
        processed: number of calls of image processors: ``"replayed"`` by what their code did
            before, or ``"run"``.
        results: number of native results, by kind (``"tensor"``, ``"array"``), and of images that
            got their pixels for other operations (``"pixels"``). Other libraries' decoders count
            theirs likewise.
        collated: number of sample tensors that were made ``"in place"`` in their batch, and that
            were ``"copied"`` into it.
        ended: number of images that got their pixels, by the function that needed them.
        failed: error of the replacement, by the name of the replaced function.
        read_seconds: time spent reading files, in seconds.
        decode_seconds: time spent in native decoders and executors, in seconds.
        read_bytes: bytes read from files.
        cache: images by where they came from, as in ``system/shm/cache_counts.py``.
    """

    files: int = 0
    left: Counter[str] = field(default_factory=Counter)
    recorded: Counter[str] = field(default_factory=Counter)
    native: Counter[str] = field(default_factory=Counter)
    processed: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    collated: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    failed: dict[str, str] = field(default_factory=dict)
    read_seconds: float = 0.0
    decode_seconds: float = 0.0
    read_bytes: int = 0
    cache: list[int] = field(default_factory=cache_counts.nothing)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickles and copies plain values."""
        counters = [getattr(self, name) for name in _COUNTERS]
        rest = (self.failed, self.read_seconds, self.decode_seconds, self.read_bytes, self.cache)
        return _unpickled, (self.files, tuple(map(dict, counters)), rest)

    def add(self, other: Counts) -> None:
        """Adds the counts of another process; warns of replacements that have failed there."""
        self.files += other.files
        for name in _COUNTERS:
            getattr(self, name).update(getattr(other, name))
        for name, error in other.failed.items():
            if self.failed.setdefault(name, error) is error:
                log.warning(_REPEATED if name == REPEATED else _FAILED, name, error)
        self.read_seconds += other.read_seconds
        self.decode_seconds += other.decode_seconds
        self.read_bytes += other.read_bytes
        self.cache = [ours + theirs for ours, theirs in zip(self.cache, other.cache, strict=True)]

    def take_words(self) -> list[int]:
        """Returns the counts that workers have a word of shared memory for, and resets them."""
        words = [self.files]
        self.files = 0
        for counter, names in self._with_words():
            words += map(counter.pop, names, repeat(0))
        return words

    def add_words(self, words: Sequence[int]) -> None:
        """Adds counts of ``take_words``."""
        rest = iter(words)
        self.files += next(rest, 0)
        for counter, names in self._with_words():
            counter.update({name: count for name, count in zip(names, rest, strict=False) if count})

    def _with_words(self) -> tuple[tuple[Counter[str], tuple[str, ...]], ...]:
        return (
            *((self.results, RESULTS), (self.collated, COLLATED)),
            *((self.recorded, OPERATIONS), (self.native, NATIVE), (self.processed, PROCESSED)),
        )

    def take_spent(self) -> Spent:
        """Returns the times, bytes and cache counts, and resets them to zero."""
        parts = [0.0] * FIRST_STAGE
        parts[READ], parts[PASSES] = self.read_seconds, self.decode_seconds
        spent = Spent(parts, self.read_bytes, self.cache)
        self.read_seconds = self.decode_seconds = 0.0
        self.read_bytes, self.cache = 0, cache_counts.nothing()
        return spent

    def __bool__(self) -> bool:
        return bool(self.files or self.failed) or any(getattr(self, name) for name in _COUNTERS)

    def as_dict(self) -> dict[str, object]:
        """Returns plain values for ``stats()``."""
        return {
            "files": self.files,
            "left_to_pillow": dict(self.left),
            "recorded": dict(self.recorded),
            "native": dict(self.native),
            "processed": dict(self.processed),
            "results": dict(self.results),
            "collated": dict(self.collated),
            "ended_by": dict(self.ended),
            "failed": dict(self.failed),
        }

    def explain(self) -> list[str]:
        """Returns the lines of ``explain()``."""
        decoded = f"{self.files} files opened by user code were decoded natively"
        lines = [f"deferred images: {decoded}" if self.files else "deferred images:"]
        for what, counted in (
            ("left to the library", self.left),
            ("recorded", self.recorded),
            ("run natively on plain tensors", self.native),
            ("calls of image processors", self.processed),
            ("run for", self.results),
            ("collated", self.collated),
            ("given pixels, and left to the library from there, for", self.ended),
        ):
            if counted:
                lines.append(f"  {what}: {_listed(counted)}")
        lines += [f"  failed in {name}: {error}" for name, error in self.failed.items()]
        return lines


def _unpickled(files: int, counters: Iterable[dict[str, int]], rest: Iterable[Any]) -> Counts:
    values: list[Any] = [*map(Counter, counters), *rest]
    return Counts(files, *values)


def _listed(counter: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counter.most_common())


_counts = Counts()


class _Thread(threading.local):
    scratch: Counts | None = None
    decodes = False


_thread = _Thread()


def counts() -> Counts:
    """Returns the counters of this process, or those that ``uncounted`` drops."""
    return _counts if _thread.scratch is None else _thread.scratch


class timed_decoding:  # noqa: N801  a context like those of contextlib, which take longer
    """Adds the time of the outermost block to ``decode_seconds``."""

    __slots__ = ("_began",)

    def __enter__(self) -> None:
        self._began = 0.0 if _thread.decodes else time.perf_counter()
        _thread.decodes = True

    def __exit__(self, *error: object) -> None:
        if self._began:
            _thread.decodes = False
            counts().decode_seconds += time.perf_counter() - self._began


def counted_read(read: Callable[[], Content]) -> Content:
    """Calls ``read`` and counts its time and bytes."""
    start = time.perf_counter()
    content = read()
    counted = counts()
    counted.read_seconds += time.perf_counter() - start
    counted.read_bytes += len(content)
    return content


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Drops what this thread counts in the block."""
    before, _thread.scratch = _thread.scratch, Counts()
    try:
        yield
    finally:
        _thread.scratch = before


def take() -> Counts:
    """Returns this process's counters and starts new ones."""
    global _counts
    taken, _counts = _counts, Counts()
    return taken


if hasattr(os, "register_at_fork"):  # a forked child starts with empty counters
    os.register_at_fork(after_in_child=take)

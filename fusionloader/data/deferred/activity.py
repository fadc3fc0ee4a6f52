"""In which threads images are deferred: all of a worker process, or those inside ``deferring``."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

_everywhere = _tensors = False


class _Thread(threading.local):
    active = 0
    suspended = 0
    tensors: bool | None = None  # as ``defers_tensors``; None: as in the process
    images: list[weakref.ref[Any]] | None = None  # deferred images, which may outlive the fetch
    of_claim: list[weakref.ref[Any]] | None = None  # those of a worker's current claim


_thread = _Thread()


def defer_everywhere(tensors: bool) -> None:
    """Defers in all threads of this process from now on; for worker processes.

    ``tensors`` is whether those of decoders are deferred, too.
    """
    global _everywhere, _tensors
    _everywhere, _tensors = True, tensors


def defer_nowhere() -> None:
    """Defers nothing from now on, for a loader of a pool whose images are not deferred."""
    global _everywhere
    _everywhere = False


def is_active() -> bool:
    """Whether this thread defers the images that it opens now."""
    return (_everywhere or _thread.active > 0) and not _thread.suspended


def defers_tensors() -> bool:
    """Whether this thread defers the tensors of decoders, and those of deferred images."""
    chosen = _thread.tensors
    return (_tensors if chosen is None else chosen) and is_active()


@contextlib.contextmanager
def tensors_at_once() -> Iterator[None]:
    """Defers no tensors within the block, in all threads of a worker."""
    global _tensors
    before = _tensors, _thread.tensors
    _tensors = _thread.tensors = False
    try:
        yield
    finally:
        _tensors, _thread.tensors = before


def fetched_images() -> list[weakref.ref[Any]] | None:
    """Returns the list of images that must not stay deferred after this thread's fetch.

    ``None`` in workers, where images may stay deferred.
    """
    return _thread.images


def begin_claim() -> list[weakref.ref[Any]]:
    """Begins the list of images that this thread of a worker makes for a claim; returns it."""
    images: list[weakref.ref[Any]] = []
    _thread.of_claim = images
    return images


def images_of_claim() -> list[weakref.ref[Any]] | None:
    """Returns the images that this thread has made for the current claim; ``None`` without one."""
    return _thread.of_claim


@contextlib.contextmanager
def active(tensors: bool) -> Iterator[list[weakref.ref[Any]]]:
    """Defers images in this thread, and ``tensors`` of decoders; yields references to all."""
    outer, chosen = _thread.images, _thread.tensors
    images: list[weakref.ref[Any]] = [] if outer is None else outer
    _thread.images, _thread.tensors = images, tensors
    _thread.active += 1
    try:
        yield images
    finally:
        _thread.active -= 1
        _thread.images, _thread.tensors = outer, chosen


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Leaves images to Pillow in this thread."""
    _thread.suspended += 1
    try:
        yield
    finally:
        _thread.suspended -= 1

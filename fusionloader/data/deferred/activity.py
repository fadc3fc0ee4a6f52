"""In which threads images are deferred: all of a worker process, or those inside ``deferring``."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

_everywhere = False


class _Thread(threading.local):
    active = 0
    suspended = 0
    images: list[weakref.ref[Any]] | None = None  # deferred images, which may outlive the fetch


_thread = _Thread()


def defer_everywhere() -> None:
    """Defers in all threads of this process from now on; for worker processes."""
    global _everywhere
    _everywhere = True


def is_active() -> bool:
    """Whether this thread defers the images that it opens now."""
    return (_everywhere or _thread.active > 0) and not _thread.suspended


def fetched_images() -> list[weakref.ref[Any]] | None:
    """Returns the list of images that must not stay deferred after this thread's fetch.

    ``None`` in workers, where images may stay deferred.
    """
    return _thread.images


@contextlib.contextmanager
def active() -> Iterator[list[weakref.ref[Any]]]:
    """Defers images in this thread; yields references to those deferred in the block."""
    outer = _thread.images
    images: list[weakref.ref[Any]] = [] if outer is None else outer
    _thread.images = images
    _thread.active += 1
    try:
        yield images
    finally:
        _thread.active -= 1
        _thread.images = outer


@contextlib.contextmanager
def suspended() -> Iterator[None]:
    """Leaves images to Pillow in this thread."""
    _thread.suspended += 1
    try:
        yield
    finally:
        _thread.suspended -= 1

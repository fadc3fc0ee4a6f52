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
    images: list[weakref.ref[Any]] | None = None  # that may outlive the fetch


_thread = _Thread()


def defer_everywhere() -> None:
    """Defers in all threads of this process from now on: for workers, whose Pillow is ours."""
    global _everywhere
    _everywhere = True


def is_everywhere() -> bool:
    """Whether this is a worker process."""
    return _everywhere


def is_active() -> bool:
    """Whether an image that is opened now, in this thread, is to be deferred."""
    return (_everywhere or _thread.active > 0) and not _thread.suspended


def images_of_fetch() -> list[weakref.ref[Any]] | None:
    """Returns where what must not stay deferred after this thread's fetch is noted.

    ``None`` in workers, whose images may stay deferred for good.
    """
    return _thread.images


@contextlib.contextmanager
def active() -> Iterator[list[weakref.ref[Any]]]:
    """Defers in this thread; gives the images that were deferred, of which some may be left."""
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

"""Errors of a ``Preprocessor``."""

from __future__ import annotations

import functools
import queue
from typing import NoReturn

from fusionloader.workers import messages
from fusionloader.workers.sample_errors import raise_failure


class QueueFull(queue.Full):
    """``max_queued`` images are unanswered, and ``when_full="raise"``."""


class PreprocessorClosed(RuntimeError):
    """The ``Preprocessor`` was closed before it accepted or answered the request."""


class BadImage(Exception):
    """One image cannot be prepared.

    The error also has the type that torchvision or Pillow would raise for the same image:
    ``PIL.UnidentifiedImageError`` for data that is not an image, ``OSError`` for a truncated one.

    Attributes:
        key: key of the image, for its random draws.
        place: position in the list; ``None`` if the image was submitted by itself.
    """

    key: int
    place: int | None


def bad_image(failure: messages.Failure, key: int, place: int | None = None) -> BadImage:
    """Returns the exception for an image whose worker has reported ``failure``."""
    kind: type = RuntimeError
    try:
        raise_failure(failure)
    except Exception as error:
        kind = type(error)
    where = "" if place is None else f"image {place} of the list: "
    return _made(kind, f"{where}{failure.text}", key, place)


def _made(kind: type, text: str, key: int, place: int | None) -> BadImage:
    try:
        error = _both(kind)(text)
    except TypeError:  # its constructor takes other arguments, or it cannot be derived from
        error = _both(RuntimeError)(text)
    error.key, error.place = key, place
    return error


@functools.cache
def _both(kind: type) -> type[BadImage]:
    def reduce(self: BadImage) -> tuple[object, ...]:
        return _made, (kind, str(self), self.key, self.place)

    names = {"__module__": __name__, "__doc__": kind.__doc__, "__reduce__": reduce}
    return type(f"BadImage[{kind.__name__}]", (BadImage, kind), names)


def raise_forked(pid: int) -> NoReturn:
    """Raises RuntimeError for a ``Preprocessor`` of process ``pid``, used in a fork of it."""
    raise RuntimeError(
        f"this Preprocessor belongs to process {pid}, and its threads and workers did not come "
        "along with the fork: make one in each process, after the fork"
    )

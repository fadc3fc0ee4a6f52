"""Errors of samples: exceptions as messages, and the handling by ``on_error``.

Training raises an exception of the same type, with the worker's traceback as text.
"""

from __future__ import annotations

import hashlib
import pickle
import signal
import struct
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from fusionloader.system.training_signals import raised_by_handler
from fusionloader.workers.messages import Failure

if TYPE_CHECKING:
    from fusionloader.options.loader_options import OnError

ATTEMPTS = 10  # substitutes tried for a bad sample
Sample = TypeVar("Sample")

_REMEDY = 'Mend or remove it, or leave out what cannot be read with on_error="skip".'


def capture(error: BaseException, where: str, sample: str = "", row: int = -1) -> Failure:
    """Returns ``error`` as a value that can be pickled.

    Args:
        error: the exception, while it is being handled.
        where: completes "Caught ValueError ...", as in torch: "in DataLoader worker process 0".
        sample: name of the sample, such as "index 5 (cats/5.jpg)".
        row: row of the sample in the mini-batch.
    """
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    about = f"Sample: {sample}\n" if sample else ""
    if sample and isinstance(error, OSError):
        about += f"{_REMEDY}\n"
    message = f"Caught {type(error).__name__} {where}.\n{about}Original {text}"
    try:
        kind = pickle.dumps(type(error))
    except Exception:  # a class made inside a function
        kind = None
    return Failure(kind, message, row, summary(error))


def summary(error: BaseException) -> str:
    """Returns the type and the first line of the message of ``error``, for a warning."""
    try:
        text = str(error)
    except Exception:  # in the __str__ of a class of the user
        text = ""
    # DALI's messages begin with the traceback of the pipeline's definition.
    text = text.rpartition("encountered:")[2]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])


def raise_failure(failure: Failure) -> NoReturn:
    """Raises the exception that the worker caught, as torch's ``DataLoader`` does."""
    raise failure_error(failure)


def failure_error(failure: Failure) -> BaseException:
    """Returns the exception that ``raise_failure`` raises."""
    from torch._utils import KeyErrorMessage

    kind: Any = _kind(failure)
    if kind is KeyError:
        return KeyError(KeyErrorMessage(failure.text))  # whose repr keeps the line breaks
    try:
        if getattr(kind, "message", None):
            error: BaseException = kind(message=failure.text)
        else:
            error = kind(failure.text)
    except Exception as other:  # its constructor takes other arguments
        if raised_by_handler(other, signal.valid_signals()):
            raise
        return RuntimeError(failure.text)
    return error


def _kind(failure: Failure) -> type[BaseException]:
    if failure.kind is not None:
        try:
            kind = pickle.loads(failure.kind)
        except Exception as other:  # defined in a module that this process cannot import
            if raised_by_handler(other, signal.valid_signals()):
                raise
            return RuntimeError
        if isinstance(kind, type) and issubclass(kind, BaseException):
            return kind
    return RuntimeError


class BadSample(Exception):
    """Raised for a bad sample whose tiny-batch fails with it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Replacement(Generic[Sample]):
    """The substitute of a bad sample, and its index; both ``None`` if the sample is left out."""

    sample: Sample | None
    index: int | None


def resolve(
    on_error: OnError,
    failure: Failure,
    draws: tuple[int, int, int, int],
    count: int,
    load: Callable[[int], Sample],
) -> Replacement[Sample]:
    """Returns the replacement of a bad sample.

    Args:
        on_error: option of the loader.
        failure: error of the bad sample.
        draws: seed, epoch, key and occurrence of the bad sample.
        count: number of samples in the dataset, 0 if unknown.
        load: makes the sample of an index, with the draws of the bad sample.

    Raises:
        BadSample: ``on_error`` is ``"raise"``, or no substitute was found.
    """
    if on_error == "skip":
        return Replacement(None, None)
    if on_error == "raise" or count == 0:
        raise BadSample(failure)
    for index in substitutes(*draws, count):
        try:
            return Replacement(load(index), index)
        except Exception as error:  # the first error is reported
            if raised_by_handler(error):
                raise
    text = f"{ATTEMPTS} samples drawn as substitutes were bad too.\n{failure.text}"
    raise BadSample(replace(failure, text=text))


def substitutes(seed: int, epoch: int, key: int, occurrence: int, count: int) -> Iterator[int]:
    """Yields ``ATTEMPTS`` indices below ``count``, the same in every run."""
    for attempt in range(ATTEMPTS):
        words = struct.pack("<5Q", seed, epoch, key, occurrence, attempt)
        digest = hashlib.blake2b(words, digest_size=8).digest()
        yield int.from_bytes(digest, "little") % count

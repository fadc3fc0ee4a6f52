"""Exceptions sent from a worker to the training process: same type, worker's traceback as text."""

from __future__ import annotations

import pickle
import traceback
from typing import Any, NoReturn

from fusionloader.workers.messages import Failure

_REMEDY = 'Mend or remove it, or leave out what cannot be read with on_error="skip".'


def capture(error: BaseException, where: str, sample: str = "", position: int = -1) -> Failure:
    """Returns ``error`` as a value that can be pickled.

    Args:
        error: the exception, while it is being handled.
        where: completes "Caught ValueError ...", as in torch: "in DataLoader worker process 0".
        sample: the sample's name: "index 5 (cats/5.jpg)".
        position: of the sample in the mini-batch.
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
    return Failure(kind, message, position, summary(error))


def summary(error: BaseException) -> str:
    """Returns type and message of ``error`` in one line, for a warning.

    Of DALI's messages the part behind the traceback of the pipeline's definition.
    """
    told = str(error).rpartition("encountered:")[2]
    lines = [line.strip() for line in told.splitlines() if line.strip()]
    return ": ".join([type(error).__name__, *lines[:1]])


def raise_failure(failure: Failure) -> NoReturn:
    """Raises the exception that the worker caught, as torch's ``DataLoader`` does."""
    from torch._utils import KeyErrorMessage

    kind: Any = _kind(failure)
    if kind is KeyError:
        raise KeyError(KeyErrorMessage(failure.text))  # whose repr keeps the line breaks
    try:
        error = kind(message=failure.text) if getattr(kind, "message", None) else kind(failure.text)
    except Exception:  # its constructor takes other arguments
        raise RuntimeError(failure.text) from None
    raise error


def _kind(failure: Failure) -> type[BaseException]:
    if failure.kind is not None:
        try:
            kind = pickle.loads(failure.kind)
        except Exception:  # defined in a module that this process cannot import
            return RuntimeError
        if isinstance(kind, type) and issubclass(kind, BaseException):
            return kind
    return RuntimeError

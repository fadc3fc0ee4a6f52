"""Errors for objects that cannot be pickled, with the name of the attribute."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from pickle import PicklingError

import torch

from fusionloader.options.loader_options import LoaderOptions

_DEPTH = 6  # attributes and elements are followed to this depth
_MOST_ITEMS = 100  # lists of transforms are shorter, lists of samples longer
_SENT = ("dataset", "collate_fn", "worker_init_fn")


def explain_pickling(error: Exception, options: LoaderOptions) -> Exception | None:
    """Returns an error that names the attribute which cannot be pickled; ``None`` if all can be."""
    context = options.multiprocessing_context or torch.multiprocessing.get_context()
    if options.num_workers == 0 or (context.get_start_method() == "fork" and options.pool is None):
        return None
    where = f"workers that are started by {context.get_start_method()!r}"
    instead = "start workers by 'fork' (multiprocessing_context='fork')"
    if options.pool is not None:
        where = "the workers of a WorkerPool"
        instead = "give the loader workers of its own (num_workers=... instead of pool=...)"
    for name in _SENT:
        value = getattr(options, name)
        if not _pickles(value, _dump):
            path, culprit = deepest(value, name, _dump)
            kind = type(error) if type(error) in (AttributeError, TypeError) else PicklingError
            return kind(
                f"{path} cannot be sent to {where}: {culprit!r} cannot be pickled ({error}). Make "
                "lambdas and local functions functions of a module, open files and connections in "
                f"the worker, or {instead}."
            )
    return None


def _dump(value: object) -> None:
    ForkingPickler(io.BytesIO(), pickle.HIGHEST_PROTOCOL).dump(value)


def _pickles(value: object, dump: Callable[[object], object]) -> bool:
    try:
        dump(value)
    except Exception:
        return False
    return True


def deepest(
    value: object, path: str, dump: Callable[[object], object], depth: int = _DEPTH
) -> tuple[str, object]:
    """Finds the innermost attribute or element that cannot be pickled by ``dump``.

    Returns its path, which begins with ``path``, and its value.
    """
    if depth > 0:
        for part, inner in _parts(value):
            if not _pickles(inner, dump):
                return deepest(inner, path + part, dump, depth - 1)
    return path, value


def _parts(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, (list, tuple)) and len(value) <= _MOST_ITEMS:
        yield from ((f"[{position}]", inner) for position, inner in enumerate(value))
    elif isinstance(value, dict) and len(value) <= _MOST_ITEMS:
        yield from ((f"[{key!r}]", inner) for key, inner in value.items())
    elif not isinstance(value, type) and hasattr(value, "__dict__") and not callable_name(value):
        yield from ((f".{name}", inner) for name, inner in vars(value).items())


def callable_name(value: object) -> str:
    """Returns the qualified name of a function, ``""`` for any other value."""
    return getattr(value, "__qualname__", "") if callable(value) else ""

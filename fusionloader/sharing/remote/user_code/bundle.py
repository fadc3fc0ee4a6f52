"""A loader's dataset, pickled for Ray."""

from __future__ import annotations

import hashlib
import importlib.util
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusionloader.transforms.executors.python import Source

_DIGEST_BYTES = 16
_COMPARED = ("torch", "torchvision", "numpy", "pillow")  # other versions may make other samples


@dataclass(frozen=True, slots=True)
class CodeBundle:
    """What makes a loader's samples.

    Attributes:
        pickled: the source of samples, with the dataset, as Ray's cloudpickle writes it.
        search_path: where the training process finds modules.
    """

    pickled: bytes
    search_path: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Tells it from others: the hexadecimal BLAKE2b of what is pickled."""
        return hashlib.blake2b(self.pickled, digest_size=_DIGEST_BYTES).hexdigest()


def need_ray() -> None:
    """Raises ``ImportError`` with what to do if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ImportError("workers on other machines need Ray: pip install fusionloader[remote]")


def bundle(source: Source) -> CodeBundle:
    """Returns a source of samples as it is now.

    Raises:
        ImportError: Ray is not installed.
        PicklingError: a part of the dataset cannot be pickled; a ``TypeError`` or an
            ``AttributeError`` where that is what the part raises. The text names it.
    """
    need_ray()
    from ray import cloudpickle

    try:
        pickled = cloudpickle.dumps(source)
    except Exception as error:
        raise _explained(error, source.dataset, cloudpickle.dumps) from error
    return CodeBundle(pickled, tuple(filter(None, sys.path)))


def _explained(error: Exception, dataset: Any, dumps: Callable[[Any], bytes]) -> Exception:
    from fusionloader.workers.pickling import deepest

    path, culprit = deepest(dataset, "dataset", dumps)
    kind = type(error) if type(error) in (AttributeError, TypeError) else PicklingError
    return kind(
        f"{path} cannot be sent to remote workers: {culprit!r} cannot be pickled ({error}). Open "
        "files and connections where samples are made, or leave out Remote(user_code=True)."
    )


def installed() -> dict[str, str]:
    """Returns the versions of Python and of those packages that are installed here."""
    found = {"python": platform.python_version()}
    for name in _COMPARED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def difference(wanted: dict[str, str]) -> str | None:
    """Returns what is installed here in another version than is wanted, ``None`` if nothing is."""
    here = installed()
    for name, version in wanted.items():
        if here.get(name) != version:
            found = f"has {name} {here[name]}" if name in here else f"has no {name}"
            return f"{found}, and training has {name} {version[:40]}"
    return None

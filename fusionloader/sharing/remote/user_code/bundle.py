"""A loader's dataset, pickled for Ray, and the versions of packages that it needs."""

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


class NotMade(Exception):
    """Samples cannot be made here; the text says why."""


@dataclass(frozen=True, slots=True)
class CodeBundle:
    """The code and data that make a loader's samples.

    Attributes:
        pickled: the source of samples, with the dataset, as Ray's cloudpickle writes it.
        search_path: folders in which the training process finds modules.
    """

    pickled: bytes
    search_path: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Hexadecimal BLAKE2b of ``pickled``, which identifies the bundle."""
        return hashlib.blake2b(self.pickled, digest_size=_DIGEST_BYTES).hexdigest()


def need_ray() -> None:
    """Raises ``ImportError`` with what to do if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ImportError("workers on other machines need Ray: pip install fusionloader[remote]")


def bundle(source: Source) -> CodeBundle:
    """Pickles a source of samples.

    Raises:
        ImportError: Ray is not installed.
        PicklingError: a part of the dataset cannot be pickled; the text names the part. A
            ``TypeError`` or an ``AttributeError`` of the part keeps its type.
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
    """Returns the versions of Python and of the compared packages that are installed here."""
    found = {"python": platform.python_version()}
    for name in _COMPARED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def compare_packages(wanted: dict[str, str]) -> str | None:
    """Returns how the packages here differ from the wanted ones, ``None`` if they do not."""
    here = installed()
    for name, version in wanted.items():
        if here.get(name) != version:
            found = f"has {name} {here[name]}" if name in here else f"has no {name}"
            return f"{found}, and training has {name} {version[:40]}"
    return None

"""A loader's dataset, pickled for Ray."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pickle import PicklingError
from typing import TYPE_CHECKING, Any

from fusionloader.sharing.remote.ray_needed import need_ray

if TYPE_CHECKING:
    from fusionloader.transforms.executors.python import Source

_DIGEST_BYTES = 16


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

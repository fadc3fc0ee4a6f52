"""torchvision's datasets that hold their images in memory: the MNIST, CIFAR and SVHN families."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fusionloader.transforms.plan.patches import is_defined_by


@dataclass(frozen=True, slots=True, eq=False)
class PixelArrays:
    """The images and targets of a dataset in memory.

    Attributes:
        images: uint8 array, N x height x width x channels (3: RGB, 1: grey).
        targets: int64 array of N.
        given: the targets as the dataset returns them, if those are not Python ints.
        odd: whether ``default_collate`` makes no int64 batch of ``given``.
    """

    images: npt.NDArray[np.uint8]
    targets: npt.NDArray[np.int64]
    given: Sequence[Any] | None = None
    odd: bool = False

    def at(self, indices: npt.NDArray[np.int64]) -> PixelArrays:
        """Returns the images and targets of some indices, copied."""
        given = None if self.given is None else [self.given[index] for index in indices.tolist()]
        return PixelArrays(self.images[indices], self.targets[indices], given, self.odd)

    def target(self, index: int) -> Any:
        """Returns a sample's target, of the same type as the dataset returns it."""
        return int(self.targets[index]) if self.given is None else self.given[index]


UNKNOWN = "not a dataset that is known, and without read_encoded(index)"
"""Why a dataset that is none of these has no plan."""


def pixel_arrays(dataset: Any) -> PixelArrays | str:
    """Returns the arrays of a dataset of these families, or the reason why it has none.

    A dataset belongs to a family if its class has the ``__getitem__`` of ``MNIST``, ``CIFAR10`` or
    ``SVHN``. Its samples are then the transformed image of ``data[index]``, and the target: an int,
    or for ``CIFAR10`` the element of its list.
    """
    from torchvision.datasets import CIFAR10, MNIST, SVHN

    getitem = getattr(type(dataset), "__getitem__", None)
    known = [family.__getitem__ for family in (MNIST, CIFAR10, SVHN)]
    if getitem in known and not is_defined_by(getitem, MNIST):
        return "its __getitem__ was replaced"
    if callable(getattr(dataset, "__getitems__", None)):
        return "its class has a custom __getitems__"
    given: Sequence[Any] | None = None
    try:
        if getitem is MNIST.__getitem__:
            images = np.asarray(dataset.data)[..., None]
            targets = np.asarray(dataset.targets)
        elif getitem is CIFAR10.__getitem__:
            images, targets = np.asarray(dataset.data), np.asarray(dataset.targets)
            given = dataset.targets
        elif getitem is SVHN.__getitem__:
            images = np.asarray(dataset.data).transpose(0, 2, 3, 1)
            targets = np.asarray(dataset.labels)
        else:
            return UNKNOWN
    except (AttributeError, TypeError, ValueError) as error:
        return f"its arrays are not as torchvision makes them: {error}"
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        return f"its images are {images.dtype} of shape {images.shape[1:]}, not 8-bit pixels"
    if targets.shape != images.shape[:1] or targets.dtype.kind not in "iu":
        return "its targets are not one integer per image"
    values = targets.astype(np.int64, copy=False)
    if given is None or _are_ints(given):
        return PixelArrays(images, values)
    odd = not (_is_array(given) and targets.dtype == np.int64)
    return PixelArrays(images, values, given, odd)


def _are_ints(targets: object) -> bool:
    return isinstance(targets, (list, tuple)) and set(map(type, targets)) <= {int}


def _is_array(targets: object) -> bool:
    import torch

    return type(targets) in (np.ndarray, torch.Tensor)

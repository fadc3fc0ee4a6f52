"""Datasets around datasets of images: ``Subset``, ``ConcatDataset``, and classes of the user.

Those of the user read one sample each, and transform its image. ``without_wrappers`` takes them
off. What remains is a tree of ``Subset`` and ``ConcatDataset``, whose leaves are the datasets of
images, or ``Transformed`` ones.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data import ConcatDataset, Subset

from fusionloader.transforms.plan.arguments import NotCompiled, Transform
from fusionloader.transforms.plan.patches import is_defined_by
from fusionloader.transforms.plan.wrappers import read_sample


@dataclass(frozen=True, slots=True, eq=False)
class Transformed:
    """A dataset of images with more transforms than its own, which come after that.

    Attributes:
        dataset: the dataset of images.
        transforms: the transforms of classes around it, the innermost class first.
        around: names of these classes, the innermost one first.
    """

    dataset: Any
    transforms: tuple[Transform, ...]
    around: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.dataset)


def without_wrappers(dataset: Any) -> Any:
    """Returns the tree of a dataset; itself if no class of the user is taken off.

    Parts that are the same dataset with the same transforms have one leaf.
    """
    return _without_wrappers(dataset, (), (), {})


def _without_wrappers(
    dataset: Any,
    transforms: tuple[Transform, ...],
    around: tuple[str, ...],
    leaves: dict[tuple[int, ...], Transformed],
) -> Any:
    if type(dataset) is Subset:
        inner = _without_wrappers(dataset.dataset, transforms, around, leaves)
        return dataset if inner is dataset.dataset else Subset(inner, dataset.indices)
    if type(dataset) is ConcatDataset and _is_torchs_own(dataset):
        parts = [_without_wrappers(each, transforms, around, leaves) for each in dataset.datasets]
        same = all(part is each for part, each in zip(parts, dataset.datasets, strict=True))
        if same:
            return dataset
        joined: ConcatDataset[Any] = ConcatDataset(parts)
        joined.cumulative_sizes = list(dataset.cumulative_sizes)  # a wrapper may have fewer samples
        return joined
    try:
        read = read_sample(dataset)
    except NotCompiled:
        if not around:
            return dataset
        key = (id(dataset), *map(id, transforms))
        return leaves.setdefault(key, Transformed(dataset, transforms, around))
    inner = read.dataset if read.indices is None else Subset(read.dataset, read.indices)
    name = type(dataset).__name__
    return _without_wrappers(inner, (*read.transforms, *transforms), (name, *around), leaves)


def find_leaves(images: Any) -> list[Any]:
    """Returns the leaves of a tree, each once, in order."""
    return list({id(leaf): leaf for leaf in _leaves(images)}.values())


def _leaves(images: Any) -> Iterator[Any]:
    if type(images) is Subset:
        yield from _leaves(images.dataset)
    elif type(images) is ConcatDataset and _is_torchs_own(images):
        for part in images.datasets:
            yield from _leaves(part)
    else:
        yield images


def find_leaf(images: Any, index: Any) -> tuple[Any, Any]:
    """Returns the leaf that has a sample, and the index in it.

    Raises:
        IndexError, TypeError: there is no such index.
    """
    while True:
        if type(images) is Subset:
            images, index = images.dataset, images.indices[index]
        elif type(images) is ConcatDataset:
            ends = images.cumulative_sizes
            if not -ends[-1] <= index < ends[-1]:
                raise IndexError(f"index {index} of {ends[-1]} samples")
            index %= ends[-1]
            part = bisect.bisect_right(ends, index)
            images, index = images.datasets[part], index - (ends[part - 1] if part else 0)
        else:
            return images, index


def sample_files(dataset: Any) -> Callable[[Any], Hashable] | None:
    """Returns what names the file of a sample, if the dataset or a part of it has ``sample_file``.

    It gives ``None`` for samples of other parts.
    """
    if not any(map(_names_files, find_leaves(dataset))):
        return None

    def sample_file(index: Any) -> Hashable:
        leaf, inner = find_leaf(dataset, index)
        return leaf.sample_file(inner) if _names_files(leaf) else None

    return sample_file


def _names_files(leaf: Any) -> bool:
    return callable(getattr(type(leaf), "sample_file", None))


def leaf_indices(images: Any) -> npt.NDArray[np.int64] | None:
    """Returns the index of each sample in the only leaf of a tree; ``None`` for the leaf itself."""
    if type(images) is Subset:
        inner = leaf_indices(images.dataset)
        indices = np.asarray(list_indices(images), dtype=np.int64)
        return indices if inner is None else inner[indices]
    if type(images) is ConcatDataset:
        return np.concatenate([_first_indices(part, size) for part, size in sized_parts(images)])
    return None


def _first_indices(part: Any, size: int) -> npt.NDArray[np.int64]:
    found = leaf_indices(part)
    return np.arange(size) if found is None else cut(found, size)


def list_indices(subset: Subset[Any]) -> Sequence[Any]:
    """Returns the indices of a subset, found as it finds them: one by one, by their places."""
    indices = subset.indices
    if isinstance(indices, (list, tuple, range, np.ndarray, torch.Tensor)):
        return indices
    return [indices[place] for place in range(len(indices))]


def sized_parts(joined: ConcatDataset[Any]) -> Iterator[tuple[Any, int]]:
    """Yields the parts of a dataset with the numbers of samples that it takes of each."""
    begin = 0
    for part, end in zip(joined.datasets, joined.cumulative_sizes, strict=True):
        yield part, end - begin
        begin = end


def cut(found: Any, size: int) -> Any:
    """Returns the first ``size`` of what a part of a joined dataset has.

    Raises:
        IndexError: it has fewer, since the dataset was joined.
    """
    if len(found) < size:
        raise IndexError(f"a joined dataset has had {size} samples, and now has {len(found)}")
    return found[:size]


def inner_dataset(leaf: Any) -> Any:
    """Returns the dataset of images of a leaf."""
    return leaf.dataset if type(leaf) is Transformed else leaf


def _is_torchs_own(dataset: Any) -> bool:
    getitem = type(dataset).__getitem__
    return is_defined_by(getitem, ConcatDataset) and not hasattr(dataset, "__getitems__")

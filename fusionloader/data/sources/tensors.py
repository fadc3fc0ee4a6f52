"""Gathers mini-batches of a ``TensorDataset``, with one call for each tensor."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import StackDataset, Subset, TensorDataset

from fusionloader.options.aliases import Batch
from fusionloader.transforms.executors.collate import collated_by_torch
from fusionloader.transforms.plan.patches import is_defined_by

_INDICES = frozenset((int, np.int64))
_DTYPES = frozenset(
    (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
    + (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    + (torch.complex64, torch.complex128)
)


# Sequences whose elements can be read without running code of the user.
_SEQUENCES = (list, tuple, range, np.ndarray)
# Up to this many elements index_select works in the calling thread. Up to this many bytes this
# thread is faster than torch's threads, whose wake-up took 8 ms on two busy cores.
_SERIAL_ELEMENTS, _ALONE_BYTES = 1 << 15, 1 << 20


class NotGathered(Exception):
    """A mini-batch cannot be gathered and has to be made sample by sample."""


def row_bytes(dataset: object) -> int | None:
    """Returns the bytes of a sample if ``gather`` supports a dataset, else ``None``."""
    try:
        batch = gather(dataset, [0])
    except NotGathered:
        return None
    if not collated_by_torch(torch.empty(0, device="cpu")):
        return None
    return sum(int(leaf.nbytes) for leaf in tree_leaves(batch))


def gather(dataset: object, indices: Sequence[object]) -> Batch:
    """Returns the same as ``default_collate([dataset[index] for index in indices])``.

    Supports tensors, ``TensorDataset`` and ``StackDataset`` of tensors, and ``Subset``, to any
    depth.

    Raises:
        NotGathered: another kind of dataset, an index that is no integer or out of range, or no
            indices.
    """
    return _gather(dataset, _checked(indices))


def _checked(indices: Sequence[object]) -> list[int]:
    if not indices or not _INDICES.issuperset(map(type, indices)):
        raise NotGathered
    return list(indices)  # type: ignore[arg-type]


def _gather(dataset: object, indices: list[int]) -> Batch:
    kind = type(dataset)
    if kind is torch.Tensor:
        return _rows(indices)(dataset)  # type: ignore[arg-type]
    if not _is_torchs(dataset):
        raise NotGathered
    if kind is TensorDataset:
        return list(map(_rows(indices), dataset.tensors))  # type: ignore[attr-defined]
    if kind is Subset:
        outer = dataset.indices  # type: ignore[attr-defined]
        if type(outer) not in _SEQUENCES:
            raise NotGathered
        try:
            inner = [outer[index] for index in indices]
        except IndexError:
            raise NotGathered from None
        return _gather(dataset.dataset, _checked(inner))  # type: ignore[attr-defined]
    parts = dataset.datasets  # type: ignore[attr-defined]
    if type(parts) is dict:
        return {name: _gather(part, indices) for name, part in parts.items()}
    return [_gather(part, indices) for part in parts]


def _functions(kind: Any) -> tuple[object, object]:
    return kind.__getitem__, getattr(kind, "__getitems__", None)


_TORCHS: dict[type, tuple[object, object]] = {
    kind: _functions(kind)
    for kind in (TensorDataset, StackDataset, Subset)
    if all(is_defined_by(function, kind) for function in _functions(kind) if function)
}


def _is_torchs(dataset: object) -> bool:
    """Whether a dataset is of torch's own class, whose methods were not replaced."""
    known = _TORCHS.get(type(dataset))
    if known is None or "__getitems__" in vars(dataset):
        return False
    return known == _functions(type(dataset))


def _rows(indices: list[int]) -> Callable[[torch.Tensor], torch.Tensor]:
    index = torch.frombuffer(array("q", indices), dtype=torch.int64)
    lowest, highest = min(indices), max(indices)

    def rows(tensor: torch.Tensor) -> torch.Tensor:
        if not _is_plain(tensor):
            raise NotGathered
        count = len(tensor)
        if highest >= count or lowest < -count:
            raise NotGathered
        elements = len(indices) * (tensor.numel() // count)
        if _SERIAL_ELEMENTS <= elements <= _ALONE_BYTES // tensor.itemsize:
            return _rows_by_this_thread(tensor, index)
        return tensor.index_select(0, index if lowest >= 0 else index % count)

    return rows


def _rows_by_this_thread(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    shape = (len(index), *tensor.shape[1:])
    rows = torch.empty(shape, dtype=tensor.dtype, device="cpu")
    source, target = tensor, rows
    if tensor.dtype is torch.bfloat16:  # NumPy has no bfloat16
        source, target = source.view(torch.int16), target.view(torch.int16)
    # Indices are in range, so "wrap" changes nothing. With "raise" NumPy copies the rows twice.
    np.take(source.numpy(), index.numpy(), axis=0, out=target.numpy(), mode="wrap")
    return rows


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether rows can be copied: a contiguous CPU tensor without gradient or lazy conjugation."""
    if type(tensor) is not torch.Tensor or tensor.dtype not in _DTYPES or not tensor.dim():
        return False
    if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.requires_grad:
        return False
    return tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())

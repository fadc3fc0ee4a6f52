"""Writes samples into the rows of a layout."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from operator import attrgetter
from typing import Protocol

import numpy as np
import torch

from fusionloader.transforms.executors.layout import (
    TEXT_LENGTH,
    Layout,
    Leaf,
    Memory,
    Node,
    Sample,
    encoded_text,
    with_article,
)


class LayoutMismatch(Exception):
    """A sample has another structure, shape or type than the layout."""


class Placed(Protocol):
    """Tensors that were made in their rows."""

    is_empty: bool
    """Whether it knows none of the tensors that are written."""

    def holds(self, column: int, at: int, tensor: torch.Tensor) -> bool:
        """Whether leaf ``column`` of row ``at`` lies there; else the row may be overwritten."""


WriteRows = Callable[[int, Sequence[Sample]], None]
"""Writes samples into consecutive rows from a row on.

Raises:
    LayoutMismatch: a sample does not fit the layout; rows may be partly written.
"""


def make_writer(
    layout: Layout, buffer: Memory, rows: int, placed: Placed | None = None
) -> WriteRows:
    """Returns a function that writes samples into the rows of one batch's memory.

    ``buffer`` has ``layout.batch_bytes(rows)`` writable bytes. Tensors that ``placed`` holds are
    not written again.
    """
    return _compile_writer(layout.root, enumerate(layout.tensors(buffer, rows, rows)), placed)


def _compile_writer(
    node: Node, tensors: Iterator[tuple[int, torch.Tensor]], placed: Placed | None
) -> WriteRows:
    if isinstance(node, Leaf):
        return _leaf_writer(node, *next(tensors), placed)
    writers = [_compile_writer(child, tensors, placed) for child in node.children]
    kind, count = node.kind, len(writers)
    if node.keys is not None:
        return _mapping_writer(node.keys, writers)

    def write(row: int, samples: Sequence[Sample]) -> None:
        for sample in samples:
            if type(sample) is not kind or len(sample) != count:
                raise LayoutMismatch(f"expected {with_article(kind.__name__)} of {count}")
        for writer, column in zip(writers, zip(*samples, strict=True), strict=True):
            writer(row, column)

    return write


def _mapping_writer(keys: tuple[Hashable, ...], writers: list[WriteRows]) -> WriteRows:
    wanted = set(keys)

    def write(row: int, samples: Sequence[Sample]) -> None:
        for sample in samples:
            if type(sample) is not dict or sample.keys() != wanted:
                raise LayoutMismatch(f"expected a dict with the keys {keys}")
        if row == 0 and tuple(samples[0]) != keys:  # a batch has the order of its first sample
            raise LayoutMismatch(f"expected a dict with the keys {keys} in this order")
        for key, writer in zip(keys, writers, strict=True):
            writer(row, [sample[key] for sample in samples])

    return write


def _leaf_writer(leaf: Leaf, number: int, block: torch.Tensor, placed: Placed | None) -> WriteRows:
    if leaf.kind == "tensor":
        return _tensor_writer(leaf, number, block, placed)
    if leaf.kind == "array":
        return _array_writer(leaf, block)
    if leaf.kind == "text":
        return _text_writer(leaf, block)
    return _scalar_writer(leaf, block)


def _tensor_writer(
    leaf: Leaf, number: int, block: torch.Tensor, placed: Placed | None
) -> WriteRows:
    dtype, shape = leaf.dtype, torch.Size(leaf.shape)
    kind = leaf.tensor

    def check(tensors: Sequence[torch.Tensor]) -> None:
        # Of a few hundred small tensors, attribute by attribute is the faster way.
        is_alike = set(map(type, tensors)) == {kind} and set(map(_dtype, tensors)) == {dtype}
        if not is_alike or any(map(_requires_grad, tensors)):
            raise LayoutMismatch(f"expected a tensor of {dtype} and shape {tuple(shape)}")

    def check_places(tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            strided = tensor.layout is torch.strided and tensor.is_cpu
            if not strided or tensor.shape != shape:
                raise LayoutMismatch(f"expected a tensor of {dtype} and shape {tuple(shape)}")

    def write(row: int, column: Sequence[Sample]) -> None:
        with _as_plain(kind):
            check(column)
            if placed is None or placed.is_empty:
                check_places(column[:1])
                try:
                    torch.stack(column, out=block[row : row + len(column)])  # type: ignore[arg-type]
                except RuntimeError:  # another shape, layout or device than the first
                    check_places(column)
                    raise
                return
            check_places(column)
            for at, tensor in enumerate(column, row):
                if not placed.holds(number, at, tensor):
                    block[at].copy_(tensor)

    return write


_dtype, _requires_grad = attrgetter("dtype"), attrgetter("requires_grad")


def _as_plain(kind: type) -> contextlib.AbstractContextManager[None]:
    """Returns a context in which tensors of a subclass count as plain tensors."""
    if kind is torch.Tensor:
        return contextlib.nullcontext()
    return torch._C.DisableTorchFunctionSubclass()


def _array_writer(leaf: Leaf, block: torch.Tensor) -> WriteRows:
    rows = block.numpy()
    dtype, shape = rows.dtype, leaf.shape

    def write(row: int, column: Sequence[Sample]) -> None:
        for position, array in enumerate(column, row):
            if type(array) is not np.ndarray or array.dtype != dtype or array.shape != shape:
                raise LayoutMismatch(f"expected an array of {dtype} and shape {shape}")
            rows[position] = array

    return write


def _text_writer(leaf: Leaf, block: torch.Tensor) -> WriteRows:
    rows = block.numpy()
    lengths = rows[:, : TEXT_LENGTH.itemsize].view(TEXT_LENGTH)
    kind, capacity = leaf.scalar, leaf.shape[0] - TEXT_LENGTH.itemsize

    def write(row: int, column: Sequence[Sample]) -> None:
        for position, text in enumerate(column, row):
            if type(text) is not kind:
                raise LayoutMismatch(f"expected {with_article(str(kind))}")
            encoded = encoded_text(text)
            length = len(encoded)
            if length > capacity:
                raise LayoutMismatch(f"a text of more than {capacity} bytes")
            lengths[position] = length
            end = TEXT_LENGTH.itemsize + length
            rows[position, TEXT_LENGTH.itemsize : end] = np.frombuffer(encoded, np.uint8)

    return write


def _scalar_writer(leaf: Leaf, block: torch.Tensor) -> WriteRows:
    rows = block.numpy()
    kind = leaf.scalar

    def write(row: int, column: Sequence[Sample]) -> None:
        for value in column:
            if type(value) is not kind:
                raise LayoutMismatch(f"expected {with_article(str(kind))}")
        try:
            rows[row : row + len(column)] = column
        except OverflowError:
            raise LayoutMismatch("an int does not fit 64 bits") from None

    return write

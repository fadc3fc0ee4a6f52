"""The rows of one batch in shared memory, and the sample tensors that refer to them."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from fusionloader.data.deferred.rows.layout import Column, Kind

_ALIGN = 64


class Opened(Protocol):
    """The memory of a slot in which a batch is being made."""

    owner: Any
    """Buffer over the slot; the slot is not reused while anything refers to the buffer.

    ``None`` after the batch has been made.
    """
    begin: int
    """Address of the buffer."""

    def take(self, nbytes: int) -> int | None:
        """Allocates ``nbytes`` and returns their offset; ``None`` if they do not fit."""


def row_nbytes(kind: Kind) -> int:
    shape, dtype = kind
    return math.prod(shape) * int(dtype.itemsize)


def batch_nbytes(columns: Sequence[Column]) -> int:
    """Returns the bytes of a batch, each column padded to a multiple of 64."""
    sizes = [row_nbytes(column.kind) * column.rows for column in columns]
    return sum(-(-size // _ALIGN) * _ALIGN for size in sizes)


class Region:
    """The columns of a batch, one behind the other, and the tensors that refer to their rows."""

    def __init__(self, opened: Opened, columns: Sequence[Column]) -> None:
        self.opened, self.columns = opened, columns
        self._offsets: list[int] = []
        for column in columns:
            offset = opened.take(row_nbytes(column.kind) * column.rows)
            assert offset is not None  # the slot was opened for them
            self._offsets.append(offset)
        self._given: dict[tuple[int, int], weakref.ref[Any]] = {}
        self._collated: set[int] = set()

    def row(self, column: int, row: int) -> torch.Tensor | None:
        """Returns a new tensor over a row; ``None`` if the row was given out, or is collated."""
        if self._collated or (column, row) in self._given:
            return None
        shape, dtype = self.columns[column].kind
        nbytes = row_nbytes((shape, dtype))
        offset = self._offsets[column] + row * nbytes
        memory = (ctypes.c_char * nbytes).from_buffer(self.opened.owner, offset)
        self._given[column, row] = weakref.ref(memory)
        return tensor_over(memory, shape, dtype)

    def find_column(self, address: int) -> int | None:
        offset = address - self.opened.begin
        for number, (column, begin) in enumerate(zip(self.columns, self._offsets, strict=True)):
            if begin <= offset < begin + column.rows * row_nbytes(column.kind):
                return number
        return None

    def collated(
        self, column: int, tensors: Sequence[torch.Tensor], kind: Kind
    ) -> torch.Tensor | None:
        """Returns the batch of ``tensors``, all of the same kind, as a tensor over the column.

        Tensors that lie elsewhere are copied to their rows. ``None`` if such a row is in use.
        """
        if kind != self.columns[column].kind or len(tensors) > self.columns[column].rows:
            return None
        if column in self._collated or self.opened.owner is None:  # the same samples again
            return None
        nbytes = row_nbytes(kind)
        begin = self.opened.begin + self._offsets[column]
        elsewhere = [
            row for row, tensor in enumerate(tensors) if tensor.data_ptr() != begin + row * nbytes
        ]
        if any(self._is_in_use(column, row) for row in elsewhere):
            return None
        self._collated.add(column)
        whole = (ctypes.c_char * (nbytes * len(tensors))).from_buffer(
            self.opened.owner, self._offsets[column]
        )
        shape, dtype = kind
        batch = tensor_over(whole, (len(tensors), *shape), dtype)
        for row in elsewhere:
            batch[row].copy_(tensors[row])
        return batch

    def in_use(self, column: int, rows: int) -> list[int]:
        """Returns those of the first ``rows`` rows that sample tensors still refer to."""
        return [row for row in range(rows) if self._is_in_use(column, row)]

    def _is_in_use(self, column: int, row: int) -> bool:
        memory = self._given.get((column, row))
        return memory is not None and memory() is not None


def tensor_over(memory: Any, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor over memory that is no view of another tensor."""
    # Neither call makes a view. set_() or view() and reshape() would take longer, or make one.
    return torch.frombuffer(memory, dtype=dtype).resize_(tuple(shape))

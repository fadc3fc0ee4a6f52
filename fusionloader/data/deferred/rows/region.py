"""The rows of one batch in shared memory: which were given to samples' tensors, and to which."""

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
    """A slot's memory that a batch is being made in."""

    owner: Any
    """Gives its bytes; what refers to it keeps the slot from being used again.

    ``None`` when the batch has been made.
    """
    begin: int
    """The address."""

    def take(self, nbytes: int) -> int | None:
        """Returns the offset of so many bytes, ``None`` where there is no room for them."""


def nbytes_of(kind: Kind) -> int:
    """Returns the bytes of a sample's tensor."""
    shape, dtype = kind
    return math.prod(shape) * int(dtype.itemsize)


def nbytes_of_all(columns: Sequence[Column]) -> int:
    """Returns the bytes of a batch."""
    sizes = [nbytes_of(column.kind) * column.rows for column in columns]
    return sum(-(-size // _ALIGN) * _ALIGN for size in sizes)


class Region:
    """A batch's columns, one behind the other, and the rows of them that tensors look into."""

    def __init__(self, opened: Opened, columns: Sequence[Column]) -> None:
        self.opened, self.columns = opened, columns
        self._offsets: list[int] = []
        for column in columns:
            offset = opened.take(nbytes_of(column.kind) * column.rows)
            assert offset is not None  # the slot was opened for them
            self._offsets.append(offset)
        self._given: dict[tuple[int, int], weakref.ref[Any]] = {}
        self._collated: set[int] = set()

    def row(self, column: int, row: int) -> torch.Tensor | None:
        """Returns a new tensor for a row; ``None`` if there was one, or there is a batch."""
        if self._collated or (column, row) in self._given:
            return None
        shape, dtype = self.columns[column].kind
        nbytes = nbytes_of((shape, dtype))
        offset = self._offsets[column] + row * nbytes
        memory = (ctypes.c_char * nbytes).from_buffer(self.opened.owner, offset)
        self._given[column, row] = weakref.ref(memory)
        return _tensor(memory, shape, dtype)

    def column_of(self, address: int) -> int | None:
        """Returns the column that an address lies in."""
        offset = address - self.opened.begin
        for number, (column, begin) in enumerate(zip(self.columns, self._offsets, strict=True)):
            if begin <= offset < begin + column.rows * nbytes_of(column.kind):
                return number
        return None

    def collated(
        self, column: int, tensors: Sequence[torch.Tensor], kind: Kind
    ) -> torch.Tensor | None:
        """Returns the batch of tensors, all of that kind, most of which lie in their rows.

        Those that lie elsewhere are copied. ``None`` where a row that they need holds something.
        """
        if kind != self.columns[column].kind or len(tensors) > self.columns[column].rows:
            return None
        if column in self._collated or self.opened.owner is None:  # samples that come again
            return None
        nbytes = nbytes_of(kind)
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
        batch = _tensor(whole, (len(tensors), *shape), dtype)
        for row in elsewhere:
            batch[row].copy_(tensors[row])
        return batch

    def in_use(self, column: int, rows: int) -> list[int]:
        """Returns which of the first rows tensors look into."""
        return [row for row in range(rows) if self._is_in_use(column, row)]

    def _is_in_use(self, column: int, row: int) -> bool:
        memory = self._given.get((column, row))
        return memory is not None and memory() is not None


def _tensor(memory: Any, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor over memory, which is no view of another."""
    flat = torch.frombuffer(memory, dtype=torch.uint8)
    tensor = torch.empty(0, dtype=dtype, device="cpu")
    storage: Any = flat.untyped_storage()
    tensor.set_(storage, 0, tuple(shape))  # type: ignore[call-overload]
    return tensor

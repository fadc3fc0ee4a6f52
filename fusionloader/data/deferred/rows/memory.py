"""Allocates each sample's tensor in the row of the batch where it is expected to end up."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch

from fusionloader.data.deferred.counts import counts
from fusionloader.data.deferred.rows.layout import Kind, Place, RowLayout
from fusionloader.data.deferred.rows.region import Opened, Region, batch_nbytes
from fusionloader.data.deferred.rows.sample_rows import SampleRows

_MOST_NUMBERS = 1 << 16  # of tensors that are not collated yet


class Slots(Protocol):
    """The slots of shared memory in which batches are made."""

    def open(self, nbytes: int) -> Opened | None:
        """Returns a slot for a batch of ``nbytes``; ``None`` if none is free."""

    def use(self, opened: Opened) -> None:
        """Makes ``opened`` the slot of the batch that is being collated."""


class _Whole(NamedTuple):
    """A batch tensor that lies in the rows of a region."""

    batch: torch.Tensor
    region: Region
    column: int


class BatchRows:
    """Makes sample tensors in rows, and collates them.

    Several threads may make samples at the same time; one thread at a time collates.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots, self._pid = slots, os.getpid()
        self._layout = RowLayout()
        self._made = 0
        self._numbers: dict[int, int] = {}  # numbers of tensors, by address
        self._regions: dict[int, Region | None] = {}  # by the number of the batch's first tensor
        self._lock = threading.Lock()
        self._collator: int | None = None  # identifier of the collating thread
        self._columns: list[tuple[Kind, list[int | None]]] = []
        self._unsettled: list[_Whole] = []

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns an uninitialized tensor for a sample."""
        if os.getpid() != self._pid:  # a forked child shares the rows with its parent
            return torch.empty(tuple(shape), dtype=dtype, device="cpu")
        with self._lock:
            place = self._layout.place(self._made, (tuple(shape), dtype))
            tensor = None if place is None else self._row(place)
            if tensor is None:
                tensor = torch.empty(tuple(shape), dtype=dtype, device="cpu")
            self._number(tensor)
        return tensor

    def made_elsewhere(self, tensor: torch.Tensor) -> None:
        """Numbers a sample's tensor that has memory of its own."""
        with self._lock:
            self._number(tensor)

    def _number(self, tensor: torch.Tensor) -> None:
        if len(self._numbers) == _MOST_NUMBERS:
            self._numbers.clear()
        self._numbers[tensor.data_ptr()] = self._made
        self._made += 1

    def _row(self, place: Place) -> torch.Tensor | None:
        if place.batch not in self._regions:
            opened = self._slots.open(batch_nbytes(self._layout.columns))
            region = None if opened is None else Region(opened, self._layout.columns)
            self._regions[place.batch] = region
        region = self._regions[place.batch]
        return None if region is None else region.row(place.column, place.row)

    @contextlib.contextmanager
    def collating(self) -> Iterator[None]:
        """Within the block, ``stacked`` makes the tensors of one batch."""
        self._collator, self._columns = threading.get_ident(), []
        try:
            yield
            with self._lock:
                begin = self._layout.collated(self._columns)
                self._numbers = {at: n for at, n in self._numbers.items() if n >= begin}
                self._regions = {n: each for n, each in self._regions.items() if n >= begin}
        finally:
            self._collator = None

    def stacked(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """Returns ``torch.stack(tensors)`` as a tensor over rows; ``None`` if it cannot be."""
        if self._collator != threading.get_ident():
            return None
        kind = tuple(tensors[0].shape), tensors[0].dtype
        if not all(map(is_plain, tensors)):
            return None
        if any((tuple(each.shape), each.dtype) != kind for each in tensors):
            return None
        addresses = [tensor.data_ptr() for tensor in tensors]
        with self._lock:
            numbers = [self._numbers.get(address) for address in addresses]
            self._columns.append((kind, numbers))
            made = self._in_region(tensors, addresses, kind)
        if any(number is not None for number in numbers):
            counts().collated["copied" if made is None else "in place"] += len(tensors)
        return made

    def _in_region(
        self, tensors: Sequence[torch.Tensor], addresses: Sequence[int], kind: Kind
    ) -> torch.Tensor | None:
        for region in self._regions.values():
            for address in addresses:
                column = None if region is None else region.find_column(address)
                if region is not None and column is not None:
                    batch = region.collated(column, tensors, kind)
                    if batch is not None:
                        self._unsettled.append(_Whole(batch, region, column))
                        self._slots.use(region.opened)
                    return batch
        return None

    def settle(self) -> None:
        """Replaces each batch tensor by a copy if sample tensors still refer to its rows.

        To be called after collating and before user code gets the batch.
        """
        settled, self._unsettled = self._unsettled, []
        for batch, region, column in settled:
            rows = region.in_use(column, len(batch))
            if rows:
                batch.set_(batch.clone())  # type: ignore[call-overload]
                counts().collated["in place"] -= len(batch)
                counts().collated["copied"] += len(batch)
            for row in rows:
                self._layout.retain(column, row)


def is_plain(tensor: object) -> bool:
    """Whether this is a tensor that is nothing but its elements, one after the other."""
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided:
        return False
    if not tensor.is_cpu or tensor.requires_grad or tensor.is_quantized or tensor.is_nested:
        return False
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def joined_shape(name: str, shapes: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """Returns the shape of ``torch.cat`` or ``torch.stack``; ``None`` if torch joins none such.

    torch takes 0.2 ms to find it without memory.
    """
    first = tuple(shapes[0])
    if name == "stack":
        return (len(shapes), *first) if all(tuple(each) == first for each in shapes) else None
    if not all(len(each) and tuple(each[1:]) == first[1:] for each in shapes):
        return None
    return sum(each[0] for each in shapes), *first[1:]


_current: BatchRows | None = None
_of_samples: SampleRows | None = None


def use(rows: BatchRows | None) -> None:
    """Makes sample tensors of this process in ``rows`` from now on.

    With ``None`` each tensor has memory of its own.
    """
    global _current
    _current = rows


def use_sample_rows(rows: SampleRows | None) -> None:
    """Makes tensors in the rows of single samples, where no ``BatchRows`` are in use."""
    global _of_samples
    _of_samples = rows


def current() -> BatchRows | None:
    """Returns the rows in use; ``None`` if each tensor has memory of its own."""
    return _current


def sample_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns an uninitialized tensor for a sample."""
    rows = _current or _of_samples
    if rows is None:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    return rows.empty(shape, dtype)


def made_elsewhere(tensor: object) -> None:
    """Numbers a tensor that was made of an image without ``sample_tensor``."""
    rows = _current or _of_samples
    if rows is not None and type(tensor) is torch.Tensor and tensor.is_cpu:
        rows.made_elsewhere(tensor)

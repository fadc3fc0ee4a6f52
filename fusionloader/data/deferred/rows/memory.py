"""The memory of samples' tensors: rows of the batch that they will be in, as far as it is known."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch

from fusionloader.data.deferred.counts import counts
from fusionloader.data.deferred.rows.layout import Kind, Place, RowLayout
from fusionloader.data.deferred.rows.region import Opened, Region, nbytes_of_all

_MOST_NUMBERS = 1 << 16  # of tensors that no batch was made of


class Slots(Protocol):
    """Where batches are made."""

    def open(self, nbytes: int) -> Opened | None:
        """Returns a slot for a batch of so many bytes; ``None`` where there is none."""

    def use(self, opened: Opened) -> None:
        """Says that the batch that is being collated lies there."""


class _Whole(NamedTuple):
    """A tensor of a batch that lies in the rows of a region."""

    batch: torch.Tensor
    region: Region
    column: int


class BatchRows:
    """Rows for the tensors of samples, and the batches that these are collated to.

    Threads may make samples at the same time; one at a time collates.
    """

    def __init__(self, slots: Slots) -> None:
        self._slots, self._pid = slots, os.getpid()
        self._layout = RowLayout()
        self._made = 0
        self._numbers: dict[int, int] = {}  # of tensors, by address
        self._regions: dict[int, Region | None] = {}  # by the number of the batch's first tensor
        self._lock = threading.Lock()
        self._collator: int | None = None  # the thread
        self._columns: list[tuple[Kind, list[int | None]]] = []
        self._unsettled: list[_Whole] = []

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns a sample's tensor of the shape, not initialized."""
        if os.getpid() != self._pid:  # a child's rows would be its parent's
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
            opened = self._slots.open(nbytes_of_all(self._layout.columns))
            region = None if opened is None else Region(opened, self._layout.columns)
            self._regions[place.batch] = region
        region = self._regions[place.batch]
        return None if region is None else region.row(place.column, place.row)

    @contextlib.contextmanager
    def collating(self) -> Iterator[None]:
        """Lets ``stacked`` make the tensors of one batch in the block."""
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
        """Returns ``torch.stack(tensors)`` where that lies in rows; ``None`` elsewhere."""
        if self._collator != threading.get_ident():
            return None
        kind = tuple(tensors[0].shape), tensors[0].dtype
        if not all(_is_plain(tensor, kind) for tensor in tensors):
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
                column = None if region is None else region.column_of(address)
                if region is not None and column is not None:
                    batch = region.collated(column, tensors, kind)
                    if batch is not None:
                        self._unsettled.append(_Whole(batch, region, column))
                        self._slots.use(region.opened)
                    return batch
        return None

    def settle(self) -> None:
        """Makes batches whose rows are looked into copies, which nothing else looks into.

        To be called when collating is over and before user code sees the batch.
        """
        settled, self._unsettled = self._unsettled, []
        for batch, region, column in settled:
            rows = region.in_use(column, len(batch))
            if rows:
                batch.set_(batch.clone())  # type: ignore[call-overload]
                counts().collated["in place"] -= len(batch)
                counts().collated["copied"] += len(batch)
            for row in rows:
                self._layout.keep(column, row)


def _is_plain(tensor: torch.Tensor, kind: Kind) -> bool:
    """Whether a tensor can be a row, as one of that kind."""
    if type(tensor) is not torch.Tensor or (tuple(tensor.shape), tensor.dtype) != kind:
        return False
    if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.requires_grad:
        return False
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


_current: BatchRows | None = None


def use(rows: BatchRows | None) -> None:
    """Makes the tensors of this process's samples in rows of their batches from now on.

    ``None`` has them made in memory of their own.
    """
    global _current
    _current = rows


def current() -> BatchRows | None:
    """Returns what this process makes samples in; ``None`` where that is memory of their own."""
    return _current


def sample_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor for a sample, not initialized."""
    if _current is None:
        return torch.empty(tuple(shape), dtype=dtype, device="cpu")
    return _current.empty(shape, dtype)


def made_elsewhere(tensor: object) -> None:
    """Notes what was made of an image by other means."""
    if _current is not None and type(tensor) is torch.Tensor and tensor.is_cpu:
        _current.made_elsewhere(tensor)

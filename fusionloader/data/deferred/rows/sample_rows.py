"""Tensors of single samples, made at their rows in the batch that workers fill together.

**How it works.** A worker knows the row of a sample before it makes the sample. The tensor of a
deferred image is made in that row, by the thread that runs the dataset. If the sample has this
tensor at the place that the layout has for it, nothing is copied. Which tensor of a sample goes to
which place is learned from the samples before.

**Why it is right.** A row is mapped a second time for its tensor, and nothing else refers to that
mapping. So the number of references to it says whether user code still has the tensor, a view of
it, or an array over it. Before a row is overwritten, and before a tiny-batch is finished, a mapping
that is still referred to becomes a private copy at the same addresses. What user code keeps is its
own from then on: it neither sees later batches nor changes this one. A dataset that keeps what it
returns gains nothing from rows, so its tensors are soon made elsewhere.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from fusionloader import _native
from fusionloader.data.deferred.counts import counts
from fusionloader.data.deferred.rows.layout import Kind
from fusionloader.data.deferred.rows.region import tensor_over

LEAST_BYTES = 1 << 17  # a smaller tensor is copied sooner than placed
_ALIGN = 64  # as torch's own memory, which vectorized code may round by
_MOST_MAPPINGS = 8192  # the system allows a process about 65,000
# Mappings that may be lost before tensors are made elsewhere, and the fraction of all rows.
_FEW_LOST, _MOST_LOST = 8, 0.02
_NOWHERE = -1


class RowSlot(Protocol):
    """The memory of a batch."""

    @property
    def number(self) -> int:
        """Number of the slot."""

    def map_row(self, begin: int, nbytes: int) -> _native.RowMapping:
        """Maps bytes of the slot once more."""


class SampleProgress(Protocol):
    """What a worker does."""

    @property
    def sample(self) -> int | None:
        """Row of the sample that is being made, if any is."""


class SampleColumn(NamedTuple):
    """The rows of one tensor of the samples.

    Attributes:
        kind: shape and dtype.
        begin: offset in the slot.
        nbytes: bytes of a row.
    """

    kind: Kind
    begin: int
    nbytes: int


class _Row:
    """A mapped row, which a tensor may refer to."""

    __slots__ = ("_memory", "_rest", "address", "mapped", "place")

    def __init__(self, mapped: _native.RowMapping, place: tuple[int, int, int]) -> None:
        self.mapped, self.address, self.place = mapped, mapped.address, place
        self._memory = (ctypes.c_char * place[2]).from_buffer(mapped)  # type: ignore[arg-type]
        self._rest = self._count()

    def tensor(self, kind: Kind) -> torch.Tensor:
        return tensor_over(self._memory, *kind)

    def is_in_use(self) -> bool:
        """Whether a tensor over the row, or anything made of it without a copy, is left."""
        return self._count() > self._rest

    def _count(self) -> int:
        return sys.getrefcount(self._memory)


class SampleRows:
    """Makes the tensors of samples in the rows of one claim after the other.

    Attributes:
        is_empty: whether no tensor was made in this claim.
    """

    def __init__(self, progress: SampleProgress) -> None:
        self._progress = progress
        self._columns: Sequence[SampleColumn | None] = ()
        self._slot: RowSlot | None = None
        self._mapped: dict[tuple[int, int, int], _Row] = {}  # none is in use but those given
        self._given: dict[tuple[int, int], _Row] = {}  # of this claim, by column and row
        self._thread = self._pid = 0
        self._made: dict[int, list[int]] = {}  # addresses of the samples' tensors, by row
        self._order: dict[int, int] = {}  # columns by the number of a tensor within its sample
        self._lost = self._placed = 0
        self.is_empty = True
        self._is_given_up = False

    def begin(self, slot: RowSlot | None, columns: Sequence[SampleColumn | None]) -> None:
        """Begins a claim, with the memory of its batch; ``None`` if it is not known yet."""
        self.settle()
        self._slot, self._columns = None if self._is_given_up else slot, columns
        self._thread, self._pid = threading.get_ident(), os.getpid()

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Returns an uninitialized tensor for a sample, in its row if there is a place for it."""
        kind = tuple(shape), dtype
        # Another thread may make samples for later, and a forked child shares the rows.
        is_other = threading.get_ident() != self._thread or os.getpid() != self._pid
        at = None if is_other else self._progress.sample
        row = None if at is None else self._find(at, kind)
        if row is None:
            tensor = torch.empty(kind[0], dtype=dtype, device="cpu")
        else:
            tensor = row.tensor(kind)
        if at is not None:
            self._number(at, tensor)
        return tensor

    def made_elsewhere(self, tensor: torch.Tensor) -> None:
        """Numbers a tensor of the sample that is being made, wherever it lies."""
        at = self._progress.sample
        if at is not None and threading.get_ident() == self._thread:
            self._number(at, tensor)

    def _number(self, at: int, tensor: torch.Tensor) -> None:
        self._made.setdefault(at, []).append(tensor.data_ptr())
        self.is_empty = False

    def _find(self, at: int, kind: Kind) -> _Row | None:
        number = len(self._made.get(at, ()))
        column = self._order.get(number, number)
        found = self._columns[column] if 0 <= column < len(self._columns) else None
        if self._slot is None or found is None or found.kind != kind:
            return None
        if (column, at) in self._given:
            return None
        place = self._slot.number, found.begin + at * found.nbytes, found.nbytes
        row = self._mapped.get(place)
        if row is None:
            if place[1] % _ALIGN or len(self._mapped) >= _MOST_MAPPINGS:
                return None
            row = self._mapped[place] = _Row(self._slot.map_row(*place[1:]), place)
        self._given[column, at] = row
        return row

    def holds(self, column: int, at: int, tensor: torch.Tensor) -> bool:
        """Whether a sample's tensor lies in its row; if not, the row may be overwritten."""
        given, address = self._given.get((column, at)), tensor.data_ptr()
        if given is not None:
            if given.address == address and tensor.is_contiguous() and not tensor.is_neg():
                counts().collated["in place"] += 1
                return True
            self._lost += self._leave(column, at)
        made = self._made.get(at, ())
        if address in made:
            counts().collated["copied"] += 1
            self._learn(made.index(address), column, len(made))
        return False

    def _learn(self, number: int, column: int, count: int) -> None:
        """Makes tensors of that number within a sample in this column from now on."""
        for other in range(count):
            if self._order.get(other, other) == column:
                self._order[other] = _NOWHERE
        self._order[number] = column

    def settle(self) -> None:
        """Ends a claim: makes private what user code still refers to.

        To be called before tiny-batches are finished, and when the worker itself refers to their
        samples no more.
        """
        self._placed += len(self._given)
        kept = sum([self._leave(*place) for place in tuple(self._given)])
        if kept:
            self._lost += kept
            counts().collated["kept by user code"] += kept
        self._made.clear()
        self.is_empty = True
        if self._lost > max(_FEW_LOST, _MOST_LOST * self._placed):
            self._is_given_up = True

    def _leave(self, column: int, at: int) -> bool:
        """Ends the use of a row by a sample; returns whether its mapping was lost to user code."""
        row = self._given[column, at]
        lost = row.is_in_use()
        if lost:
            row.mapped.make_private()
            self._mapped.pop(row.place, None)
        del self._given[column, at]
        return lost

"""Which row of a batch a sample's tensor will be: learned from the batches before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Kind = tuple[tuple[int, ...], Any]
"""Shape and type of the elements of a sample's tensor."""

_MOST_KEPT = 0.5  # of a batch's tensors; beyond it nothing is gained


class Place(NamedTuple):
    """Where a tensor will be: ``batch`` is the number of the first tensor of its batch."""

    batch: int
    column: int
    row: int


@dataclass(frozen=True, slots=True)
class Column:
    """A tensor of a batch: rows of one kind."""

    kind: Kind
    rows: int


class RowLayout:
    """Places of tensors that are numbered as they are made.

    Attributes:
        columns: of a batch as the last ones were; none where these were not alike.
    """

    def __init__(self) -> None:
        self.columns: tuple[Column, ...] = ()
        self._places: tuple[tuple[int, int], ...] = ()  # column and row, by position in the batch
        self._begin = 0  # the number of the next batch's first tensor
        self._kept: set[int] = set()  # positions of tensors that are looked at after collating
        self._is_given_up = False

    def place(self, number: int, kind: Kind) -> Place | None:
        """Returns where a tensor will be; ``None`` where that is not known, or not to be used.

        A generator may make the first samples of a batch before the one before is collated.
        """
        count = len(self._places)
        ahead, position = divmod(number - self._begin, count) if count else (-1, 0)
        if ahead not in (0, 1) or position in self._kept:
            return None
        column, row = self._places[position]
        if self.columns[column].kind != kind:
            return None
        return Place(self._begin + ahead * count, column, row)

    def collated(self, columns: Sequence[tuple[Kind, Sequence[int | None]]]) -> int:
        """Learns from a batch: the numbers of each column's tensors; ``None`` for unknown ones.

        Returns:
            The number of the next batch's first tensor.
        """
        columns = [each for each in columns if any(number is not None for number in each[1])]
        if self._is_as_expected(columns):
            self._begin += len(self._places)
            return self._begin
        known = sorted(number for _, column in columns for number in column if number is not None)
        if not known or self._is_given_up:
            self._forget()
            return self._begin
        begin, self._begin = known[0], known[-1] + 1
        if self._begin - begin == len(known) == len(set(known)):
            self._learn(columns, begin)
        elif not all(_is_ascending(column) for _, column in columns):
            self._forget()
        return self._begin

    def keep(self, column: int, row: int) -> None:
        """Gives no row to tensors at this place any more."""
        if (column, row) in self._places:
            self._kept.add(self._places.index((column, row)))
        if len(self._kept) > _MOST_KEPT * len(self._places):
            self._is_given_up = True
            self._forget()

    def _is_as_expected(self, columns: Sequence[tuple[Kind, Sequence[int | None]]]) -> bool:
        """Whether a whole batch is laid out as the last ones, but for unknown tensors."""
        found = tuple(Column(kind, len(numbers)) for kind, numbers in columns)
        if not found or found != self.columns:
            return False
        return all(
            columns[column][1][row] in (None, self._begin + position)
            for position, (column, row) in enumerate(self._places)
        )

    def _learn(self, columns: Sequence[tuple[Kind, Sequence[int | None]]], begin: int) -> None:
        places: dict[int, tuple[int, int]] = {}
        found: list[Column] = []
        for kind, numbers in columns:
            if None not in numbers:  # others are made elsewhere
                for row, number in enumerate(numbers):
                    assert number is not None
                    places[number - begin] = len(found), row
                found.append(Column(kind, len(numbers)))
        if len(places) < self._begin - begin:
            return
        learned = tuple(places[position] for position in range(len(places)))
        if learned == self._places[: len(learned)]:
            return  # an epoch's last batch
        self.columns, self._places = tuple(found), learned
        # A generator still looks at the last sample that it has yielded.
        self._kept = {
            at for at, (column, row) in enumerate(learned) if row == found[column].rows - 1
        }

    def _forget(self) -> None:
        self.columns, self._places, self._kept = (), (), set()


def _is_ascending(numbers: Sequence[int | None]) -> bool:
    known = [number for number in numbers if number is not None]
    return all(one < other for one, other in zip(known, known[1:], strict=False))

"""Predicts the row of a batch that a sample's tensor will be, from the batches before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Kind = tuple[tuple[int, ...], Any]
"""Shape and dtype of a sample's tensor."""

_MOST_RETAINED = 0.5  # fraction of a batch's tensors; above it nothing is gained


class Place(NamedTuple):
    """The predicted place of a tensor; ``batch`` is the number of the first tensor of its batch."""

    batch: int
    column: int
    row: int


@dataclass(frozen=True, slots=True)
class Column:
    """A tensor of a batch, with ``rows`` sample tensors of one kind."""

    kind: Kind
    rows: int


class RowLayout:
    """Predicts the places of tensors, which are numbered in the order in which they are made.

    Attributes:
        columns: columns of the last batches; empty while nothing is predicted.
    """

    def __init__(self) -> None:
        self.columns: tuple[Column, ...] = ()
        self._places: tuple[tuple[int, int], ...] = ()  # column and row, by position in the batch
        self._begin = 0  # the number of the next batch's first tensor
        self._retained: set[int] = set()  # positions of tensors that user code uses after collating
        self._is_given_up = False

    def place(self, number: int, kind: Kind) -> Place | None:
        """Returns the place of tensor ``number``; ``None`` if it is unknown, or not to be used.

        A generator may make the first samples of a batch before the batch before it is collated.
        """
        count = len(self._places)
        ahead, position = divmod(number - self._begin, count) if count else (-1, 0)
        if ahead not in (0, 1) or position in self._retained:
            return None
        column, row = self._places[position]
        if self.columns[column].kind != kind:
            return None
        return Place(self._begin + ahead * count, column, row)

    def collated(self, columns: Sequence[tuple[Kind, Sequence[int | None]]]) -> int:
        """Learns from a collated batch.

        Args:
            columns: kind of each column, and the numbers of its tensors, ``None`` for unknown ones.

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

    def retain(self, column: int, row: int) -> None:
        """Stops predicting a place for tensors of this column and row."""
        if (column, row) in self._places:
            self._retained.add(self._places.index((column, row)))
        if len(self._retained) > _MOST_RETAINED * len(self._places):
            self._is_given_up = True
            self._forget()

    def _is_as_expected(self, columns: Sequence[tuple[Kind, Sequence[int | None]]]) -> bool:
        """Whether a batch has the predicted layout, apart from unknown tensors."""
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
            if None not in numbers:  # columns with unknown tensors are made elsewhere
                for row, number in enumerate(numbers):
                    assert number is not None
                    places[number - begin] = len(found), row
                found.append(Column(kind, len(numbers)))
        if len(places) < self._begin - begin:
            return
        learned = tuple(places[position] for position in range(len(places)))
        if learned == self._places[: len(learned)]:
            return  # the short last batch of an epoch
        self.columns, self._places = tuple(found), learned
        # A generator still refers to the last sample that it has yielded.
        self._retained = {
            at for at, (column, row) in enumerate(learned) if row == found[column].rows - 1
        }

    def _forget(self) -> None:
        self.columns, self._places, self._retained = (), (), set()


def _is_ascending(numbers: Sequence[int | None]) -> bool:
    known = [number for number in numbers if number is not None]
    return all(one < other for one, other in zip(known, known[1:], strict=False))

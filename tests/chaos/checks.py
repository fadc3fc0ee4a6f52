"""Whether what training was given is what it should have been given."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from chaos.kinds.setting import BATCH
from chaos.tally import Tally

# Batches from the next one on that may have been made before a fault was mended: four times as
# many as are in flight.
AHEAD = 16


@dataclass(slots=True, eq=False)
class Excuse:
    """An error that a fault may cause.

    Attributes:
        says: pattern of its text. A group named ``index`` is a sample that has to be in the batch.
        index: sample that has to be in the batch, if the fault concerns one sample.
        ends: whether the epoch ends with the error.
        takes: whether the error stands for its batch, which does not come then; ``None`` if either
            may be. An error that names a sample stands for its batch.
        times: how often the error may come.
        until: by course, the epoch and the batch from which on nothing is excused; ``None`` while
            the fault lasts.
    """

    says: str
    index: int | None = None
    ends: bool = False
    takes: bool | None = True
    times: float = math.inf
    until: dict[Course, tuple[int, float]] | None = None

    def find(
        self, text: str, course: Course, numbers: Iterable[int], left_out: int | None = None
    ) -> Excused | None:
        """Returns what is known of an error in one of some batches, or that it is not excused.

        ``left_out`` is the sample that is left out of its batch with this error, if one is.
        """
        match = re.search(self.says, text, re.DOTALL)
        if match is None or self.times <= 0:
            return None
        named = match.groupdict().get("index")
        index = self.index if named is None else int(named)
        takes = self.takes if named is None else True
        for number in numbers:
            samples = course.indices(number) if left_out is None else [left_out]
            if self._lasts(course, number) and (index is None or index in samples):
                return Excused(index, takes, self.ends)
        return None

    def _lasts(self, course: Course, number: int) -> bool:
        if self.until is None:
            return True
        epoch, end = self.until.get(course, (-1, 0))
        return course.epoch == epoch and number < end


@dataclass(frozen=True, slots=True)
class Excused:
    """An error with an excuse: its sample, if one is known, and as in ``Excuse``."""

    index: int | None
    takes: bool | None
    ends: bool


class Course:
    """How far training is in the epochs of a part.

    Attributes:
        in_order: whether batches come in the order of their numbers.
        epoch: the one under way, or the next one; ``count`` is that of its batches.
        to_come: numbers of its batches that have not come.
        is_over: whether it has ended, or is left: another one may begin.
    """

    def __init__(self, order: list[int], epochs: list[list[list[str]]], in_order: bool) -> None:
        """``order`` has the indices of an epoch's samples, ``epochs`` the rows of its batches."""
        self._order, self._epochs, self.in_order = order, epochs, in_order
        self.is_over = True
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Notes that an epoch begins, if it is another one.

        Raises:
            AssertionError: the one before is not over.
        """
        if getattr(self, "epoch", None) == epoch:
            return
        assert self.is_over, f"epoch {epoch} begins, {self.to_come} of {self.epoch} have not come"
        self.epoch, self.is_over = epoch, False
        self._rows = self._epochs[epoch] if epoch < len(self._epochs) else []
        self.count = len(self._rows)
        self.to_come = list(range(self.count))
        self._empty: list[int] = []  # batches without rows, where they come in any order
        self._gone: list[int | None] = []  # samples of errors whose batches are not known
        self._perhaps = 0  # errors that stand for a batch, or for none
        self.told: list[tuple[int, str]] = []  # samples left out, and why

    def indices(self, number: int) -> list[int]:
        """Returns the samples of a batch."""
        return self._order[number * BATCH : (number + 1) * BATCH]

    def wanted(self, number: int) -> list[str]:
        """Returns the rows of a batch."""
        return self._rows[number]

    @property
    def next(self) -> list[int]:
        """Batches that may be the next to come."""
        return self.to_come[: 1 + self._perhaps] if self.in_order else self.to_come

    def until(self) -> tuple[int, float]:
        """Returns epoch and batch from which on nothing can have been made until now."""
        end = self.to_come[0] + AHEAD if self.in_order and self.to_come else math.inf
        return self.epoch, end

    def tell(self, skipped: Sequence[tuple[int, str]]) -> None:
        """Notes samples that are left out; what is made again after an error says so again."""
        self.told = [*skipped, *(each for each in self.told if each not in skipped)]

    def take_told(self) -> list[tuple[int, str]]:
        """Returns the samples that are said to be left out of what comes now."""
        found, self.told = self.told, []
        return found

    def error(self, excused: Excused) -> None:
        """Notes an error."""
        if excused.takes is None:
            self._perhaps += 1
        elif excused.takes and not self.in_order:
            self._gone.append(excused.index)
        elif excused.takes:
            assert self.to_come, "an error for a batch after the last one"
            del self.to_come[0]

    def find(self, rows: list[str], left_out: Counter[int]) -> list[int]:
        """Returns the batch of these rows, behind those of which no sample is left; they have come.

        Nothing is returned if there is no such batch; none of the rows is the end of the epoch.
        """
        if not self.in_order:
            return self._find_anywhere(rows, left_out)
        empty, rest = [], Counter(left_out)
        for number in list(self.to_come) if left_out else []:
            samples = Counter(self.indices(number))
            if samples <= rest:
                empty.append(number)
                rest -= samples
            else:
                break
        candidates = [number for number in self.to_come if number not in empty]
        candidates = candidates[: 1 + self._perhaps]
        for place, number in enumerate(candidates):
            pairs = list(zip(self.wanted(number), self.indices(number), strict=True))
            without = Counter(index for _, index in pairs if index in rest)
            if without == rest and rows == [row for row, index in pairs if index not in rest]:
                self._perhaps -= place
                empty += candidates[:place]
                break
        else:
            if rows or rest:
                return []
            number = -1
        self.to_come = [each for each in self.to_come if each not in (*empty, number)]
        return [*empty, number]

    def _find_anywhere(self, rows: list[str], left_out: Counter[int]) -> list[int]:
        for number in self.to_come if rows else [-1]:
            pairs = list(zip(self.wanted(number), self.indices(number), strict=False))
            without = Counter(index for row, index in pairs if row not in rows)
            here = [row for row, _ in pairs if row in rows]
            whole = [each for each in self._empty if each != number]
            # Which of several batches of the same samples is the one without rows is not known.
            rest = (
                left_out - without + Counter(self.indices(number) if number in self._empty else ())
            )
            if here != rows or not without <= left_out:
                continue
            for other in self.to_come:
                samples = Counter(self.indices(other))
                if other not in (*whole, number) and samples <= rest:
                    whole.append(other)
                    rest -= samples
            if not rest:
                empty, self._empty = [each for each in whole if each not in self._empty], whole
                self.to_come = [each for each in self.to_come if each != number]
                return [*empty, number]
        return []

    def named(self, rows: list[str]) -> list[tuple[int, int]]:
        """Returns the epochs and numbers of the batches that have these rows."""
        return [
            (epoch, number)
            for epoch, batches in enumerate(self._epochs)
            for number, batch in enumerate(batches)
            if batch == rows
        ]

    def lost(self) -> int:
        """Returns how many batches an end loses, or that have come beside their error."""
        if self.in_order:
            return max(len(self.to_come) - self._perhaps, 0)
        to_come = [number for number in self.to_come if number not in self._empty]
        spare = len(to_come) - len(self._gone)
        if not 0 <= spare <= self._perhaps:
            return max(spare - self._perhaps, -spare)
        left = [self.indices(number) for number in to_come]
        return int(not _explained(left, [*self._gone, *[None] * spare]))


def _explained(batches: list[list[int]], samples: list[int | None]) -> bool:
    """Whether each batch has one of the samples, of which each is one batch's; `None` is any."""
    if not batches:
        return not samples
    return any(
        (sample is None or sample in batches[0])
        and _explained(batches[1:], samples[:place] + samples[place + 1 :])
        for place, sample in enumerate(samples)
    )


@dataclass(slots=True)
class Checks:
    """What a run may be told, and what it has counted.

    Attributes:
        folder: of the run.
        tally: of the run.
        courses: of all parts.
        bad: a sample that no batch may have, as its file is damaged.
    """

    folder: Path
    tally: Tally = field(default_factory=lambda: Tally(runs=1))
    courses: dict[tuple[int, int], Course] = field(default_factory=dict)
    bad: int | None = None
    _excuses: list[Excuse] = field(default_factory=list)

    def excuse(self, excuse: Excuse) -> Excuse:
        """Notes an error that may come from now on."""
        self._excuses.append(excuse)
        return excuse

    def mended(self, excuse: Excuse) -> None:
        """Notes that a fault is over, so that only what was made before may have an error."""
        excuse.until = {course: course.until() for course in self.courses.values()}

    def error(self, course: Course, text: str, skipped: Sequence[tuple[int, str]] = ()) -> Excused:
        """Returns what excuses an error instead of a batch.

        Raises:
            AssertionError: nothing does.
        """
        found = self._find(text, course, course.next)
        self.tally.errors[text.split(":")[0]] += 1
        course.tell(skipped)
        if found.takes:
            self._skipped(course, course.take_told(), course.next)
        if not found.ends:  # nothing of the epoch comes behind it
            course.error(found)
        return found

    def end(self, course: Course, skipped: Sequence[tuple[int, str]] = ()) -> None:
        """Checks that an epoch is whole.

        Raises:
            AssertionError: it ends too early.
        """
        self.tally.epochs += 1
        if skipped or course.told:
            self._batch(course, [], skipped)
        lost = course.lost()
        self.tally.lost += lost * BATCH
        assert not lost, f"epoch {course.epoch} ends without the batches {course.to_come}"
        course.is_over = True

    def not_begun(self, course: Course) -> None:
        """Checks that an epoch that could not be begun has given nothing yet.

        Raises:
            AssertionError: it has been left in its middle.
        """
        there = course.count - len(course.to_come)
        assert not there, f"epoch {course.epoch} is no more under way, {there} batches have come"
        course.is_over = True

    def batch(
        self, course: Course, rows: list[str], skipped: Sequence[tuple[int, str]] = ()
    ) -> None:
        """Compares the rows of a batch; ``skipped`` has the samples left out of it, and why.

        Raises:
            AssertionError: they differ.
        """
        self.tally.batches += 1
        self.tally.samples += len(rows)
        self._batch(course, rows, skipped)

    def _batch(self, course: Course, rows: list[str], skipped: Sequence[tuple[int, str]]) -> None:
        course.tell(skipped)
        skipped = course.take_told()
        found = course.find(rows, Counter(index for index, _ in skipped))
        if not found:
            self._count(course, rows)
            raise AssertionError(
                f"a batch of epoch {course.epoch} is none of {course.next}, "
                f"samples {[course.indices(number) for number in course.next[:2]]}, "
                f"left out {skipped}; it is {course.named(rows)}"
            )
        self._skipped(course, skipped, found)
        there = set(course.indices(found[-1])) - {index for index, _ in skipped}
        assert self.bad not in there, f"{self.bad}, whose file is bad, is in batch {found[-1]}"

    def _skipped(
        self, course: Course, skipped: Sequence[tuple[int, str]], numbers: Sequence[int]
    ) -> None:
        """Checks that each sample that was left out has a reason."""
        self.tally.skipped += len(skipped)
        for index, text in skipped:
            found = [number for number in numbers if index in course.indices(number)]
            self._find(text, course, found, index)

    def _find(
        self, text: str, course: Course, numbers: Sequence[int], left_out: int | None = None
    ) -> Excused:
        for excuse in self._excuses:
            found = excuse.find(text, course, numbers or [course.count], left_out)
            if found is not None:
                excuse.times -= 1
                return found
        raise AssertionError(f"an error that nothing explains: {text}")

    def _count(self, course: Course, rows: list[str]) -> None:
        """Counts what is wrong with rows that are no batch's."""
        expected = course.wanted(course.to_come[0]) if course.to_come else []
        if expected and course.in_order:
            self.tally.compare(rows, expected)
        elif rows in course._rows:
            self.tally.doubled += len(rows)
        else:
            self.tally.altered += len(rows)

    def kept(self, changed: int) -> None:
        """Checks that no batch that training has kept is another now.

        Raises:
            AssertionError: so many are.
        """
        self.tally.altered += changed
        assert not changed, f"{changed} batches that were kept have changed"

    def traps(self) -> list[list[str]]:
        """Numbers of the traps that were sprung, what they did, and in which process."""
        log = self.folder / "sprung"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []

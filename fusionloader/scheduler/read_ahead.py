"""Which ranges of files to read next, for samples that are wanted in a known order.

The samples to come are announced in the order in which they will be taken. The first one that was
not asked for yet decides where the next request reads; announced samples close by in the file are
read with it, whenever they are due. What was asked for and not taken yet counts against a budget.
Without clock and without I/O.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

_REQUESTS_IN_BUDGET = 4  # at least, so that some are under way while others are taken


class Places(Protocol):
    """Where samples are: numbered by place, in the order of (file, offset)."""

    def place(self, item: int) -> int:
        """Returns a sample's place."""

    def item(self, place: int) -> int:
        """Undoes ``place``."""

    def range(self, place: int) -> tuple[int, int, int]:
        """Returns file, first byte and the byte behind the last of the sample at a place."""

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """One request: a range of a file, and the samples in it.

    Attributes:
        file: number of the file.
        start: first byte.
        stop: the byte behind the last.
        items: samples within, in the order of the file.
    """

    file: int
    start: int
    stop: int
    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """How requests are made.

    Attributes:
        budget: bytes of samples that are asked for or held, and not taken.
        most_bytes: of one request, unless a single sample is larger.
        most_gap: bytes between two samples that are read and dropped, to save a request.
    """

    budget: int
    most_bytes: int = 8 << 20
    most_gap: int = 64 << 10


class ReadAhead:
    """The announced samples: waiting, asked for, taken.

    Attributes:
        held: bytes of samples that are asked for and not taken.
    """

    def __init__(self, places: Places, limits: ReadLimits) -> None:
        self.held = 0
        self._places, self._limits = places, limits
        self._too_large = -1, 0  # a place whose request had no room, and its bytes
        self._order: deque[int] = deque()
        self._waiting: Counter[int] = Counter()  # announced places that no request is for
        self._asked: Counter[int] = Counter()  # by place: announcements that a request is for

    def announce(self, items: Iterable[int]) -> None:
        """Notes samples that will be taken behind all announced before; repetitions count."""
        for item in items:
            place = self._places.place(item)
            if self._asked[place]:
                self._asked[place] += 1
                continue
            self._order.append(place)
            self._waiting[place] += 1

    def expects(self, item: int) -> bool:
        """Whether a request for the sample is under way, or done, and it is not taken."""
        return self._asked[self._places.place(item)] > 0

    def next_request(self) -> RangeRequest | None:
        """Returns what to read next, ``None`` where nothing is left or there is no room for it.

        A request is not made smaller because there is little room: it waits until there is enough.
        Otherwise each sample that is taken would make room for a request of a single one.
        """
        while self._order and not self._waiting.get(self._order[0]):
            self._order.popleft()
        if not self._order:
            return None
        first = self._order[0]
        place, nbytes = self._too_large
        if place == first and self.held + nbytes > self._limits.budget and self.held:
            return None
        group = self._around(first, self._limits.budget // _REQUESTS_IN_BUDGET)
        nbytes = sum(map(self._nbytes, group))
        if self.held and self.held + nbytes > self._limits.budget:
            self._too_large = first, nbytes
            return None
        return self._ask(group)

    def demand(self, items: Sequence[int]) -> list[RangeRequest]:
        """Returns the requests for samples that are wanted now and that nothing was asked for.

        Their neighbours are read with them as far as the budget allows; they are, whatever it is.
        """
        requests = []
        for place in sorted({self._places.place(item) for item in items}):
            if self._asked[place]:
                continue
            if not self._waiting[place]:
                self._waiting[place] = 1
            requests.append(self._ask(self._around(place, self._limits.budget - self.held)))
        return requests

    def taken(self, item: int) -> bool:
        """Notes that a sample was taken; returns whether its bytes may be dropped."""
        place = self._places.place(item)
        if self._asked[place] == 0:
            return True
        self._asked[place] -= 1
        if self._asked[place]:
            return False
        del self._asked[place]
        self.held -= self._nbytes(place)
        return True

    def dropped(self, items: Iterable[int]) -> list[int]:
        """Forgets samples that nobody will take; returns those whose bytes may be dropped."""
        done = []
        for item in items:
            place = self._places.place(item)
            if self._waiting.get(place):
                self._waiting[place] -= 1
            elif self._asked[place] and self.taken(item):
                done.append(item)
        return done

    def clear(self) -> None:
        """Forgets all that was announced."""
        self._order.clear()
        self._waiting.clear()
        self._asked.clear()
        self.held = 0

    def _nbytes(self, place: int) -> int:
        _, start, stop = self._places.range(place)
        return stop - start

    def _around(self, place: int, room: int) -> deque[int]:
        """Returns a waiting place and those close by that wait, too, of ``room`` bytes at most."""
        file, start, stop = self._places.range(place)
        room -= stop - start
        chosen = deque((place,))
        for step in (1, -1):  # first behind it, where a run that was just begun goes on
            near = self._nearest(place, step, file)
            while near is not None:
                _, near_start, near_stop = self._places.range(near)
                room -= near_stop - near_start
                start, stop = min(start, near_start), max(stop, near_stop)
                if stop - start > self._limits.most_bytes or room < 0:
                    return chosen
                chosen.append(near) if step > 0 else chosen.appendleft(near)
                near = self._nearest(near, step, file)
        return chosen

    def _nearest(self, place: int, step: int, file: int) -> int | None:
        """Returns the next place that waits, unless the gap up to it is too large."""
        _, start, stop = self._places.range(place)
        while 0 <= place + step < len(self._places):
            place += step
            there, low, high = self._places.range(place)
            gap = low - stop if step > 0 else start - high
            if there != file or gap > self._limits.most_gap:
                return None
            if self._waiting.get(place):
                return place
        return None

    def _ask(self, group: Sequence[int]) -> RangeRequest:
        for place in group:
            self._asked[place] = self._waiting.pop(place)
            self.held += self._nbytes(place)
        file, start, _ = self._places.range(group[0])
        _, _, stop = self._places.range(group[-1])
        return RangeRequest(file, start, stop, tuple(map(self._places.item, group)))

"""Which ranges of files to read next, for samples that are needed in a known order.

Samples are announced in the order in which they will be taken. The first announced sample without a
request decides where the next request reads. Announced samples close to it in the file are read
with it, whenever they are due. Samples that are requested and not taken count against a budget.
This module has no clock and does no I/O.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

_REQUESTS_IN_BUDGET = 4  # at least, so that some are read while others are taken


class Places(Protocol):
    """Where samples lie: their places are numbered in the order of (file, offset)."""

    def place(self, item: int) -> int:
        """Returns the place of a sample."""

    def item(self, place: int) -> int:
        """Returns the sample at a place."""

    def range(self, place: int) -> tuple[int, int, int]:
        """Returns the file of the sample at a place, its first byte and its end (exclusive)."""

    def __len__(self) -> int: ...


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """A range of a file, and the samples in it.

    Attributes:
        file: number of the file.
        start: first byte.
        stop: end of the range, exclusive.
        items: samples in the range, in the order of the file.
    """

    file: int
    start: int
    stop: int
    items: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of requests.

    Attributes:
        budget: maximum bytes of samples that are requested and not taken.
        most_bytes: maximum bytes of a request, unless a single sample is larger.
        most_gap: maximum bytes between two samples that are read and dropped to save a request.
    """

    budget: int
    most_bytes: int = 8 << 20
    most_gap: int = 64 << 10


class ReadAhead:
    """Announced samples, which are waiting, requested or taken.

    Attributes:
        held: bytes of samples that are requested and not taken.
    """

    def __init__(self, places: Places, limits: ReadLimits) -> None:
        self.held = 0
        self._places, self._limits = places, limits
        self._too_large = -1, 0  # first place of a request beyond the budget, and its bytes
        self._order: deque[int] = deque()
        self._waiting: Counter[int] = Counter()  # by place: announcements without a request
        self._requested: Counter[int] = Counter()  # by place: announcements with a request

    def announce(self, items: Iterable[int]) -> None:
        """Adds samples that will be taken after all announced before; they may repeat."""
        for item in items:
            place = self._places.place(item)
            if self._requested[place]:
                self._requested[place] += 1
                continue
            self._order.append(place)
            self._waiting[place] += 1

    def expects(self, item: int) -> bool:
        """Whether the sample is requested or read, and not taken."""
        return self._requested[self._places.place(item)] > 0

    def next_request(self) -> RangeRequest | None:
        """Returns what to read next, ``None`` if nothing is left or the budget is used up.

        A request that exceeds the budget is not made smaller: it waits until the budget suffices.
        Otherwise each sample that is taken would lead to a request of a single one.
        """
        while self._order and not self._waiting.get(self._order[0]):
            self._order.popleft()
        if not self._order:
            return None
        first = self._order[0]
        place, nbytes = self._too_large  # no need to form the same group at each call
        if place == first and self.held + nbytes > self._limits.budget and self.held:
            return None
        group = self._around(first, self._limits.budget // _REQUESTS_IN_BUDGET)
        nbytes = sum(map(self._nbytes, group))
        if self.held and self.held + nbytes > self._limits.budget:
            self._too_large = first, nbytes
            return None
        return self._request(group)

    def demand(self, items: Sequence[int]) -> list[RangeRequest]:
        """Returns the requests for samples that are needed now, without those requested before.

        The samples are read whatever the budget is, their neighbours as far as it allows.
        """
        requests = []
        for place in sorted({self._places.place(item) for item in items}):
            if self._requested[place]:
                continue
            if not self._waiting[place]:
                self._waiting[place] = 1
            requests.append(self._request(self._around(place, self._limits.budget - self.held)))
        return requests

    def taken(self, item: int) -> bool:
        """Marks a sample as taken; returns whether its bytes may be dropped."""
        place = self._places.place(item)
        if self._requested[place] == 0:
            return True
        self._requested[place] -= 1
        if self._requested[place]:
            return False
        del self._requested[place]
        self.held -= self._nbytes(place)
        return True

    def dropped(self, items: Iterable[int]) -> list[int]:
        """Withdraws announcements; returns the samples whose bytes may be dropped."""
        done = []
        for item in items:
            place = self._places.place(item)
            if self._waiting.get(place):
                self._waiting[place] -= 1
            elif self._requested[place] and self.taken(item):
                done.append(item)
        return done

    def clear(self) -> None:
        self._order.clear()
        self._waiting.clear()
        self._requested.clear()
        self.held = 0

    def _nbytes(self, place: int) -> int:
        _, start, stop = self._places.range(place)
        return stop - start

    def _around(self, place: int, budget: int) -> deque[int]:
        """Returns a waiting place and waiting ones close to it, of at most ``budget`` bytes."""
        file, start, stop = self._places.range(place)
        budget -= stop - start
        chosen = deque((place,))
        for step in (1, -1):  # forwards first, where a run of samples continues
            near = self._nearest(place, step, file)
            while near is not None:
                _, near_start, near_stop = self._places.range(near)
                budget -= near_stop - near_start
                start, stop = min(start, near_start), max(stop, near_stop)
                if stop - start > self._limits.most_bytes or budget < 0:
                    return chosen
                chosen.append(near) if step > 0 else chosen.appendleft(near)
                near = self._nearest(near, step, file)
        return chosen

    def _nearest(self, place: int, step: int, file: int) -> int | None:
        """Returns the next waiting place, ``None`` if the gap before it is too large."""
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

    def _request(self, group: Sequence[int]) -> RangeRequest:
        for place in group:
            self._requested[place] = self._waiting.pop(place)
            self.held += self._nbytes(place)
        file, start, _ = self._places.range(group[0])
        _, _, stop = self._places.range(group[-1])
        return RangeRequest(file, start, stop, tuple(map(self._places.item, group)))

"""An epoch that several jobs take from one preparation (CoorDL §6.3).

Jobs submit the mini-batches of their samplers. Each is published once, delivered to every member of
the epoch that has submitted the same samples, and recycled when all members have taken and released
it. Members join while the epoch is *gathering*; until that ends, nothing is recycled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Delivery(NamedTuple):
    """A mini-batch to be delivered to a member."""

    member: int
    number: int


class HeldUp(NamedTuple):
    """Members that wait, and the members that they wait for."""

    waiting: frozenset[int]
    blocking: frozenset[int]


@dataclass(slots=True)
class _Staged:
    """A submitted mini-batch.

    Attributes:
        samples: bytes that are equal for equal mini-batches.
        owed: members that have to take it.
        submitted: members that have submitted it.
        holders: members that may read it.
        published: whether workers prepare it, or have.
        complete: whether all of its samples are made.
    """

    samples: bytes
    owed: set[int]
    submitted: set[int] = field(default_factory=set)
    holders: set[int] = field(default_factory=set)
    published: bool = False
    complete: bool = False


class SharedEpoch:
    """What the members of one epoch have submitted, taken and released.

    Attributes:
        gathering: whether members may still join.
        members: numbers of the members.
        joined: numbers of all members so far, also of those that have left.
    """

    def __init__(self) -> None:
        self.gathering = True
        self.members: set[int] = set()
        self.joined: set[int] = set()
        self._batches: dict[int, _Staged] = {}  # by number, the oldest first

    def __bool__(self) -> bool:
        return bool(self.members or self._batches)

    def join(self, member: int) -> None:
        """Adds a member, which gets every mini-batch of the epoch.

        A member joins only once: its submissions and deliveries are remembered after it leaves.
        """
        assert self.gathering and member not in self.joined
        self.joined.add(member)
        self.members.add(member)
        for batch in self._batches.values():
            batch.owed.add(member)

    def leave(self, member: int, keeps: bool) -> None:
        """Removes a member; with ``keeps`` it may still read the mini-batches delivered to it."""
        self.members.discard(member)
        for batch in self._batches.values():
            batch.owed.discard(member)
            if not keeps:
                batch.holders.discard(member)

    def submit(self, member: int, number: int, samples: bytes) -> bytes | None:
        """Adds a member's mini-batch; returns the first member's samples if they differ."""
        batch = self._batches.get(number)
        if batch is None:
            batch = self._batches[number] = _Staged(samples, set(self.members))
        if batch.samples != samples:
            return batch.samples
        batch.submitted.add(member)
        return None

    # ---- preparation ---------------------------------------------------------------------------

    def publishable(self, staging: int) -> list[int]:
        """Returns the mini-batches that may be published, if at most ``staging`` are staged."""
        waiting = [n for n, batch in self._batches.items() if not batch.published]
        return waiting[: max(staging - self.staged, 0)]

    def is_full(self, staging: int) -> bool:
        """Whether a mini-batch cannot be published before another one is recycled."""
        unpublished = any(not batch.published for batch in self._batches.values())
        return unpublished and self.staged >= staging

    @property
    def staged(self) -> int:
        """Number of published mini-batches that not all members have taken."""
        return sum(self._is_staged(batch) for batch in self._batches.values())

    def _is_staged(self, batch: _Staged) -> bool:
        return batch.published and (self.gathering or not batch.complete or bool(batch.owed))

    def published(self, number: int) -> None:
        """Marks a mini-batch as being prepared by workers."""
        self._batches[number].published = True

    def completed(self, number: int) -> None:
        """Marks a mini-batch as finished by workers."""
        self._batches[number].complete = True

    # ---- delivery ------------------------------------------------------------------------------

    def deliveries(self) -> list[Delivery]:
        """Returns all deliveries that are due; their members are holders from now on."""
        found = []
        for number, batch in self._batches.items():
            if batch.complete:
                due = (batch.submitted & batch.owed) - batch.holders
                batch.holders |= due
                found += [Delivery(member, number) for member in sorted(due)]
        return found

    def taken(self, member: int, number: int) -> None:
        """Marks a mini-batch as taken by a member's training."""
        if number in self._batches:
            self._batches[number].owed.discard(member)

    def released(self, member: int, number: int) -> None:
        """Marks a mini-batch as no longer read by a member."""
        if number in self._batches:
            self._batches[number].holders.discard(member)

    def recycle(self) -> list[int]:
        """Removes and returns the mini-batches that no member needs, prepared or not."""
        if self.gathering and self.members:  # another member may join, and need them all
            return []
        free = [n for n, b in self._batches.items() if not (b.owed or b.holders)]
        for number in free:
            del self._batches[number]
        return free

    def held_up(self, staging: int) -> HeldUp:
        """Returns which members wait for which: those that have not taken the oldest mini-batch.

        Members wait for each other only if all that is staged is complete and one more is needed;
        otherwise they wait for workers.
        """
        staged = [batch for batch in self._batches.values() if self._is_staged(batch)]
        if not self.is_full(staging) or not all(batch.complete for batch in staged):
            return HeldUp(frozenset(), frozenset())
        blocking = frozenset(staged[0].owed)
        behind = {member for batch in staged for member in batch.owed}
        return HeldUp(frozenset(self.members - behind), blocking)

    def is_starved(self) -> bool:
        """Whether a member waits for samples: what it wants next is not complete."""
        nothing = {
            member
            for batch in self._batches.values()
            if not batch.complete
            for member in batch.submitted & batch.owed
        }
        return any(not self.untaken(member) for member in nothing)

    def untaken(self, member: int) -> int:
        """Returns the number of mini-batches that a member holds and has not taken."""
        return sum(
            member in batch.holders and member in batch.owed for batch in self._batches.values()
        )

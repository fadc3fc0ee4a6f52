"""An epoch that several jobs take from one preparation (CoorDL §6.3): who has had what.

Jobs submit the mini-batches that their samplers give. Each is published once, delivered to every
member of the epoch that has submitted the same, and recycled when all of them have taken and
released it. Members join while the epoch is *gathering*: nothing is recycled until it ends.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Delivery(NamedTuple):
    """A mini-batch that a member is to get now."""

    member: int
    number: int


class HeldUp(NamedTuple):
    """Members that wait, and those that they wait for."""

    waiting: frozenset[int]
    blocking: frozenset[int]


@dataclass(slots=True)
class _Staged:
    """A mini-batch that was submitted: its samples, who owes to take it, and who may look at it."""

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
        members: their numbers.
        joined: numbers of those that have ever been members.
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

        It does so once: what it has submitted, was sent and still holds stays noted when it leaves.
        """
        assert self.gathering and member not in self.joined
        self.joined.add(member)
        self.members.add(member)
        for batch in self._batches.values():
            batch.owed.add(member)

    def leave(self, member: int, keeps: bool) -> None:
        """Removes a member; with ``keeps`` it may still look at what it was sent."""
        self.members.discard(member)
        for batch in self._batches.values():
            batch.owed.discard(member)
            if not keeps:
                batch.holders.discard(member)

    def submit(self, member: int, number: int, samples: bytes) -> bytes | None:
        """Notes a member's mini-batch; returns the samples of the first member if they differ."""
        batch = self._batches.get(number)
        if batch is None:
            batch = self._batches[number] = _Staged(samples, set(self.members))
        if batch.samples != samples:
            return batch.samples
        batch.submitted.add(member)
        return None

    # ---- preparation ---------------------------------------------------------------------------

    def publishable(self, staging: int) -> list[int]:
        """Returns what may be published while no more than ``staging`` are staged."""
        waiting = [n for n, batch in self._batches.items() if not batch.published]
        return waiting[: max(staging - self.staged, 0)]

    def needs_room(self, staging: int) -> bool:
        """Whether a mini-batch waits to be published until another one is recycled."""
        unpublished = any(not batch.published for batch in self._batches.values())
        return unpublished and self.staged >= staging

    @property
    def staged(self) -> int:
        """Mini-batches that were published and that members have not all taken."""
        return sum(self._is_staged(batch) for batch in self._batches.values())

    def _is_staged(self, batch: _Staged) -> bool:
        return batch.published and (self.gathering or not batch.complete or bool(batch.owed))

    def published(self, number: int) -> None:
        """Notes that workers prepare a mini-batch."""
        self._batches[number].published = True

    def completed(self, number: int) -> None:
        """Notes that workers have finished it."""
        self._batches[number].complete = True

    # ---- delivery ------------------------------------------------------------------------------

    def deliveries(self) -> list[Delivery]:
        """Returns what may be delivered, and was not; whoever gets it may look at it from now."""
        found = []
        for number, batch in self._batches.items():
            if batch.complete:
                due = (batch.submitted & batch.owed) - batch.holders
                batch.holders |= due
                found += [Delivery(member, number) for member in sorted(due)]
        return found

    def taken(self, member: int, number: int) -> None:
        """Notes that a member's training got a mini-batch."""
        if number in self._batches:
            self._batches[number].owed.discard(member)

    def released(self, member: int, number: int) -> None:
        """Notes that a member looks at a mini-batch no more."""
        if number in self._batches:
            self._batches[number].holders.discard(member)

    def recycle(self) -> list[int]:
        """Returns and forgets the mini-batches that nobody needs, prepared or not."""
        kept = self.gathering and bool(self.members)
        free = [n for n, b in self._batches.items() if not (kept or b.owed or b.holders)]
        for number in free:
            del self._batches[number]
        return free

    def held_up(self, staging: int) -> HeldUp:
        """Returns who waits for whom: all that is staged is complete, and one more would be wanted.

        Nobody waits for a member while workers are preparing anything.
        """
        staged = [batch for batch in self._batches.values() if self._is_staged(batch)]
        if not self.needs_room(staging) or not all(batch.complete for batch in staged):
            return HeldUp(frozenset(), frozenset())
        blocking = frozenset(staged[0].owed)
        behind = {member for batch in staged for member in batch.owed}
        return HeldUp(frozenset(self.members - behind), blocking)

    def untaken(self, member: int) -> int:
        """Returns how many mini-batches a member has been sent, and not taken."""
        return sum(
            member in batch.holders and member in batch.owed for batch in self._batches.values()
        )

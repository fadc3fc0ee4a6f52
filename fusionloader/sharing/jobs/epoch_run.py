"""An epoch under way: its mini-batches, from submission through the staging area to delivery."""

from __future__ import annotations

import pickle
from collections.abc import Mapping

from fusionloader.scheduler.shared_epoch import SharedEpoch
from fusionloader.sharing.jobs.member import EpochKey, GroupMember
from fusionloader.sharing.jobs.sample_lists import identity, unpack
from fusionloader.sharing.jobs.staging import StagedBatch, Staging


class EpochRun:
    """The mini-batches of one epoch.

    Attributes:
        key: identifies the epoch.
        epoch: what its members have submitted, taken and released.
        opened: when the first member began it, in seconds of the monotonic clock.
        waited: seconds that its members have waited for others to begin it.
        starved: seconds in which a member has waited for samples.
    """

    def __init__(self, key: EpochKey, staging: Staging, now: float) -> None:
        self.key = key
        self.epoch = SharedEpoch()
        self.opened = now
        self.waited = self.starved = 0.0
        self._awaited: dict[int, float] = {}  # where members were then, in epochs
        self._waits_since: float | None = None
        self._staging = staging
        self._samples: dict[int, bytes] = {}  # packed, of mini-batches not published yet
        self._batches: dict[int, StagedBatch] = {}  # published, by number

    def wait(self, now: float) -> None:
        """Notes that the epoch waits for members, from the first call on."""
        if self._waits_since is None:
            self._waits_since = now
        self.waited = now - self._waits_since

    def await_member(self, member: GroupMember) -> None:
        """Notes how far a member is that the epoch begins to wait for."""
        if member.progress is not None:
            self._awaited.setdefault(member.number, member.progress.epochs)

    def progress_of(self, member: GroupMember) -> float | None:
        """Returns the epochs that a member has made while this one waited for it."""
        if member.progress is None or member.number not in self._awaited:
            return None
        return member.progress.epochs - self._awaited[member.number]

    def submit(self, member: GroupMember, number: int, samples: bytes) -> bytes | None:
        """Adds a member's mini-batch; returns another member's samples if they differ."""
        other = self.epoch.submit(member.number, number, identity(samples))
        if other is None and number not in self._batches:
            self._samples[number] = samples
        return other

    def advance(self, staging: int) -> None:
        """Recycles released mini-batches, and publishes submitted ones, ``staging`` at a time.

        Raises:
            SharedMemoryExhausted: there is no memory for the rows.
        """
        for number in self.epoch.recycle():
            self._samples.pop(number, None)
            if number in self._batches:
                self._staging.recycle(self._batches.pop(number))
        for number in self.epoch.publishable(min(staging, self._staging.capacity)):
            samples = unpack(self._samples[number])
            self._batches[number] = self._staging.publish(self.key, number, samples)
            self.epoch.published(number)
            del self._samples[number]

    def completed(self, batch: StagedBatch) -> None:
        self.epoch.completed(batch.number)

    def deliver(self, members: Mapping[int, GroupMember]) -> list[GroupMember]:
        """Sends members their complete mini-batches; returns those that have lost one."""
        lost = []
        for delivery in self.epoch.deliveries():
            member = members[delivery.member]
            others = [members[n].pid for n in self.epoch.members if n != delivery.member]
            if not self._send_done(member, self._batches[delivery.number], others):
                lost.append(member)
        return lost

    def _send_done(self, member: GroupMember, batch: StagedBatch, others: list[int]) -> bool:
        waits, member.waits = member.waits, {}
        rows = batch.payload
        fields = {
            "done": batch.number,
            "lease": batch.sequence,
            "slot": rows.number if rows else -1,
            "offset": rows.offset if rows else 0,
            "nbytes": rows.nbytes if rows else 0,
            "made": list(batch.made.items()),
            "waits": list(waits.items()),
            "failed": batch.failed,
            "given_up": batch.given_up,
            "jobs": others,
        }
        return member.reply(fields, pickle.dumps(batch.reports) if any(batch.reports) else b"")

    def leased(self, lease: int) -> int | None:
        """Returns the number of the mini-batch with a lease, ``None`` if it is of another epoch."""
        return next((n for n, b in self._batches.items() if b.sequence == lease), None)

"""A job as the coordinator knows it."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

from fusionloader.scheduler.shared_pace import TakeClock
from fusionloader.sharing.jobs import payloads
from fusionloader.system.fd_messages import Fields
from fusionloader.system.local_service import LocalPeer
from fusionloader.system.processes import is_stopped
from fusionloader.system.shm.objects import SharedMemoryExhausted

_UNKNOWN_SECONDS = 1.0  # in which a job takes its first mini-batches


class EpochKey(NamedTuple):
    """What is equal in all members of an epoch; ``first`` is the mini-batch that it begins with.

    ``total`` is the number of mini-batches, -1 where the sampler does not say.
    """

    epoch: int
    seed: int
    first: int
    total: int


@dataclass(slots=True)
class MemberProgress:
    """How far a member is in an epoch; seconds are the coordinator's clock."""

    epoch: int
    total: int
    began: float
    first: int
    delivered: int

    def seconds_until(self, epoch: int, now: float) -> float | None:
        """Returns when it begins a later epoch if it goes on like this; ``None`` if it does not.

        Soon it says how far it is; until then it may begin at any moment.
        """
        epochs_between = epoch - 1 - self.epoch
        done = self.delivered - self.first
        if epochs_between < 0:
            return None
        if done <= 0:
            return 0.0 if now - self.began < _UNKNOWN_SECONDS else None
        if self.total < 0:
            return None
        left = self.total - self.delivered + epochs_between * self.total
        return left * (now - self.began) / done


@dataclass(slots=True, eq=False)
class GroupMember(LocalPeer):
    """A loader of a job.

    Attributes:
        number: the coordinator's name for it.
        equal: what has to be equal in all members, by name.
        in_flight: mini-batches that it wants to be made ahead.
        limit: bytes that mini-batches may take; ``None`` leaves that to the coordinator.
        workers: the numbers that its workers may have.
        joined: whether its request to join was granted.
        epoch: the one that it takes from the group.
        progress: in the epoch under way, of the group or not.
        finished: the epoch that it finished last, while it has begun no other.
        waited_in_vain: it was waited for, and has not begun its next epoch.
        clock: when it has taken mini-batches.
        waits: seconds that it has waited for others, by their pids, and was not told of.
    """

    number: int = field(default_factory=itertools.count(1).__next__)
    equal: dict[str, str] = field(default_factory=dict)
    in_flight: int = 1
    limit: int | None = None
    workers: range = range(0)
    joined: bool = False
    epoch: EpochKey | None = None
    progress: MemberProgress | None = None
    finished: int | None = None
    waited_in_vain: bool = False
    clock: TakeClock = field(default_factory=lambda: TakeClock(0.0))
    waits: dict[int, float] = field(default_factory=dict)

    def reply(self, fields: Fields, payload: bytes = b"", fds: tuple[int, ...] = ()) -> bool:
        """Sends a message without waiting; returns whether that was possible."""
        try:
            payloads.send(self.connection, fields, payload, fds)
        except (OSError, SharedMemoryExhausted):
            return False
        return True

    def is_stopped(self) -> bool:
        """Whether a signal, or a debugger, has stopped the training process."""
        return is_stopped(self.pid)

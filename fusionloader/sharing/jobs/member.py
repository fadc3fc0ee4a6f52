"""A member of a group, as the coordinator sees it."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from fusionloader.scheduler.shared_pace import TakeClock
from fusionloader.sharing.jobs import payloads
from fusionloader.system.fd_messages import Fields
from fusionloader.system.local_service import LocalPeer
from fusionloader.system.processes import is_stopped
from fusionloader.system.shm.objects import SharedMemoryExhausted

_UNKNOWN_SECONDS = 1.0  # within which a job takes its first mini-batch and so shows its pace


class EpochKey(NamedTuple):
    """Identifies a run of an epoch; all of its members have the same key.

    Attributes:
        epoch: number of the epoch.
        seed: seed of the random draws.
        first: number of the mini-batch that members begin with.
        total: number of mini-batches, -1 if the sampler does not tell.
        turn: 0 for the first run; members that begin the epoch too late for it have another one.
    """

    epoch: int
    seed: int
    first: int
    total: int
    turn: int = 0

    @classmethod
    def parse(cls, fields: Fields) -> EpochKey:
        """Returns the key that a request names, of the first run."""
        return cls(*(int(fields[name]) for name in ("epoch", "seed", "first", "total")))


@dataclass(slots=True)
class MemberProgress:
    """How far a member is in an epoch.

    Attributes:
        epoch: number of the epoch.
        total: number of mini-batches, -1 if the sampler does not tell.
        began: when the member began it, in seconds of the coordinator's clock.
        first: number of the mini-batch that the member began with.
        delivered: number of the mini-batch that it gets next.
    """

    epoch: int
    total: int
    began: float
    first: int
    delivered: int

    def seconds_until(self, epoch: int, now: float) -> float | None:
        """Returns the seconds until it begins a later epoch at its present pace.

        Returns 0 while the pace is still unknown, and ``None`` if it stays unknown or the epoch
        is not a later one.
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

    @property
    def epochs(self) -> float:
        """How far it is, in epochs since the start of training."""
        return self.epoch + self.delivered / max(self.total, 1)


@dataclass(slots=True, eq=False)
class GroupMember(LocalPeer):
    """A loader of a job.

    Attributes:
        number: identifies the member.
        equal: values that have to be equal in all members, by name.
        in_flight: number of mini-batches that it wants prepared ahead.
        limit: bytes that staged mini-batches may take, ``None`` for the coordinator's default.
        workers: numbers in the queue that its workers may have.
        joined: whether it was admitted to the group.
        epoch: the epoch that it prepares in the group.
        progress: progress in the epoch under way, in the group or alone.
        finished: number of the epoch that it finished last, ``None`` if it broke that off.
        ended: when it ended its last epoch, in seconds of the coordinator's clock.
        waited_in_vain: whether the group has waited for its next epoch, which it did not begin.
        was_evicted: whether it had to leave an epoch, and has shared no whole one since.
        clock: when it has taken mini-batches.
        waits: seconds that it has waited for others, by pid, since it was last sent them.
        unsent: messages that its socket had no room for, the oldest first.
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
    ended: float = 0.0
    waited_in_vain: bool = False
    was_evicted: bool = False
    clock: TakeClock = field(default_factory=lambda: TakeClock(0.0))
    waits: dict[int, float] = field(default_factory=dict)
    unsent: deque[tuple[Fields, bytes, tuple[int, ...]]] = field(default_factory=deque)

    def reply(self, fields: Fields, payload: bytes = b"", fds: tuple[int, ...] = ()) -> bool:
        """Sends a message, later if the socket is full; returns ``False`` if one was lost."""
        self.unsent.append((fields, payload, fds))
        return self.send_unsent()

    def send_unsent(self) -> bool:
        """Sends messages until the socket is full; returns ``False`` if one was lost.

        A job reads none in a long step of training, and few fill the socket.
        """
        while self.unsent:
            try:
                payloads.send(self.connection, *self.unsent[0])
            except BlockingIOError:
                return True
            except (OSError, SharedMemoryExhausted):
                del self.unsent[0]
                return False
            del self.unsent[0]
        return True

    def is_stopped(self) -> bool:
        """Whether a signal, or a debugger, has stopped the training process."""
        return is_stopped(self.pid)

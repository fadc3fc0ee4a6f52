"""The workers of all members: their numbers, their messages, and their deaths."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from fusionloader.sharing.jobs.member import GroupMember
from fusionloader.system.shm.descriptor import wait_for
from fusionloader.workers import messages

MOST_WORKERS = 1024  # records in the control block


@dataclass(slots=True, eq=False)
class WorkerRecord:
    """A worker of a member.

    ``receiver`` reads its messages. They go to the coordinator, since a job may be busy or stopped.
    """

    number: int
    member: GroupMember
    receiver: messages.Receiver
    dead: bool = False


class WorkerRecords:
    """Registered workers, by number."""

    def __init__(
        self, watch: Callable[[int, Callable[[], None]], object], unwatch: Callable[[int], object]
    ) -> None:
        """``watch`` has a function called when a descriptor is readable, until ``unwatch``."""
        self._watch, self._unwatch = watch, unwatch
        self._by_number: dict[int, WorkerRecord] = {}

    def free_range(self, count: int, reserved: Iterable[range]) -> range | None:
        """Returns ``count`` consecutive numbers that are free and not reserved, else ``None``."""
        taken = {*self._by_number, *(number for numbers in reserved for number in numbers)}
        run = 0
        for number in range(MOST_WORKERS):
            run = 0 if number in taken else run + 1
            if run == count:
                return range(number - count + 1, number + 1)
        return None

    def add(
        self,
        number: int,
        member: GroupMember,
        message_fd: int,
        look_at: Callable[[WorkerRecord], None],
    ) -> None:
        """Registers a worker that is about to start.

        ``look_at`` is called when its message pipe is readable or has ended.
        """
        record = WorkerRecord(number, member, messages.Receiver(message_fd))
        self._by_number[number] = record
        self._watch(message_fd, lambda: look_at(record))

    def find(self, number: int) -> WorkerRecord | None:
        return self._by_number.get(number)

    def handle(self, handle: Callable[[WorkerRecord, messages.Message], None]) -> None:
        """Calls ``handle`` with each message that has arrived, and its worker."""
        for record in self._by_number.values():
            record.receiver.handle(partial(handle, record))

    def remove(self, record: WorkerRecord) -> None:
        """Removes a worker that has ended, after its messages were handled."""
        del self._by_number[record.number]
        self._unwatch(record.receiver.fd)
        record.receiver.close()
        record.dead = True


def has_ended(record: WorkerRecord) -> bool:
    """Whether a worker can write no more: a process is unmapped before its pipe is closed."""
    return wait_for(record.receiver.fd, 0)  # POLLHUP, which is reported without being requested

"""The members of a group and their requests: join, begin an epoch, submit mini-batches."""

from __future__ import annotations

from collections.abc import Iterable

from fusionloader.scheduler.shared_pace import (
    BETWEEN_SECONDS,
    FIRST,
    LastEpoch,
    TakeClock,
    is_slow,
    leaves,
    waits_for,
)
from fusionloader.sharing.jobs.epoch_run import EpochRun
from fusionloader.sharing.jobs.member import EpochKey, GroupMember, MemberProgress
from fusionloader.sharing.jobs.staging import RowSettings, StagedBatch, Staging
from fusionloader.sharing.jobs.worker_records import WorkerRecord, WorkerRecords, has_ended
from fusionloader.system.fd_messages import FdMessage, Fields
from fusionloader.system.shm import objects

LOST = "a message to it could not be sent"
_FEWEST = 2  # mini-batches that may be staged, however large they are
_FREE_MEMORY_PARTS = 4  # by default, staged mini-batches take one of so many parts of free memory


class Refusal(Exception):
    """A request that is refused; ``fields`` are the answer."""

    def __init__(self, fields: Fields) -> None:
        super().__init__(fields)
        self.fields = fields


class Group:
    """The members of a group and the epochs that they share.

    Attributes:
        members: connected members, by number.
    """

    def __init__(self, staging: Staging, workers: WorkerRecords) -> None:
        self._staging = staging
        self._workers = workers
        self.members: dict[int, GroupMember] = {}
        self._runs: dict[EpochKey, EpochRun] = {}
        self._last: dict[int, LastEpoch] = {}  # by number of the epoch
        self._limit: int | None = None

    # ---- members -------------------------------------------------------------------------------

    def remove(self, member: GroupMember) -> None:
        """Removes a member whose job has ended."""
        member.joined = False
        del self.members[member.number]
        for run in self._runs.values():
            run.epoch.leave(member.number, keeps=False)

    def evict(self, member: GroupMember, why: str, may_return: bool = True) -> None:
        """Removes a member from its epoch; batches that it still holds stay as they are.

        With ``may_return`` it may begin the rest of the epoch anew; without, it prepares it alone.
        """
        if member.epoch is None:
            return
        self._leave(member, keeps=True)
        member.was_evicted = True
        member.reply({"left": why, "may_return": may_return})

    def _leave(self, member: GroupMember, keeps: bool) -> None:
        if member.epoch is not None and member.epoch in self._runs:
            self._runs[member.epoch].epoch.leave(member.number, keeps)
        member.epoch = None

    # ---- requests ------------------------------------------------------------------------------

    def handle(self, member: GroupMember, message: FdMessage, now: float) -> None:
        """Handles a member's request.

        Raises:
            Refusal: the request conflicts with other members.
            KeyError, TypeError, ValueError, OSError: the request is malformed.
        """
        fields = message.fields
        request = fields["do"]
        if request == "join":
            self._join(member, fields)
        elif request == "begin":
            self._begin(member, fields, now)
        elif request == "step":
            self._step(member, message, now)
        elif request == "worker":
            self._add_worker(member, message)
        elif request == "dead":
            self._recover(member, int(fields["number"]))
        elif request == "alone":
            self._go_alone(member, fields, now)
        elif request == "end":
            self._end(member, fields, now)
        else:
            raise ValueError(f"no such request: {request!r}")

    def _join(self, member: GroupMember, fields: Fields) -> None:
        equal = dict(fields["equal"])
        for other in self._joined():
            for name, there in other.equal.items():
                if equal.get(name) != there:
                    raise Refusal({"refused": name, "there": there, "pid": other.pid})
        if not any(self._joined()):
            leaves_ = tuple(map(int, fields["leaves"]))
            sizes = int(fields["tiny_size"]), int(fields["group_size"])
            self._staging.settings = RowSettings(*sizes, leaves_)
        reserved = [other.workers for other in self._joined()]
        numbers = self._workers.free_range(int(fields["workers"]), reserved)
        if numbers is None:
            raise Refusal({"full": True})
        member.equal, member.workers = equal, numbers
        member.in_flight, member.limit = int(fields["in_flight"]), fields["limit"]
        member.joined = True
        member.reply({"joined": numbers.start}, fds=self._staging.fds)

    def _joined(self) -> Iterable[GroupMember]:
        return (member for member in self.members.values() if member.joined)

    def _begin(self, member: GroupMember, fields: Fields, now: float) -> None:
        key = EpochKey.parse(fields)
        self._leave(member, keeps=True)
        member.waited_in_vain = False
        member.progress = MemberProgress(key.epoch, key.total, now, key.first, key.first)
        for other in self._runs.values():
            self._compare(key, other)
        run, apart = self._find_run(member, key, now)
        run.epoch.join(member.number)
        member.epoch, member.clock = run.key, TakeClock(now, member.clock.usual)
        jobs = [self.members[n].pid for n in run.epoch.members if n != member.number]
        member.reply({"began": True, "jobs": jobs, "why_apart": apart})

    def _find_run(self, member: GroupMember, key: EpochKey, now: float) -> tuple[EpochRun, str]:
        """Returns the run of an epoch that a member may join, and why it is another than others'.

        In a run of its own, a member that comes late has the workers of all jobs, too. It may still
        hold batches of a run that it has joined before, and draw others than it has submitted.
        """
        runs = [run for run in self._runs.values() if run.key._replace(turn=0) == key]
        for run in runs:
            if run.epoch.gathering and member.number not in run.epoch.joined:
                return run, ""
        apart = ""
        if runs:
            key = key._replace(turn=max(run.key.turn for run in runs) + 1)
            is_again = any(member.number in run.epoch.joined for run in runs)
            who = "it has" if is_again else "the others have"
            apart = f"{who} begun this epoch before"
        run = self._runs[key] = EpochRun(key, self._staging, now)
        return run, apart

    def _compare(self, key: EpochKey, other: EpochRun) -> None:
        """Refuses an epoch with the number of another one, but another seed or length."""
        there = other.key
        if key.epoch != there.epoch or not other.epoch.members:
            return
        for name in ("seed", "total"):
            if getattr(key, name) != getattr(there, name):
                pid = self.members[min(other.epoch.members)].pid
                raise Refusal({"refused": name, "there": str(getattr(there, name)), "pid": pid})

    def _step(self, member: GroupMember, message: FdMessage, now: float) -> None:
        fields = message.fields
        for lease in fields.get("taken", ()):
            self._taken(member, int(lease), now)
        for lease in fields.get("released", ()):
            self._released(member, int(lease))
        if "batch" not in fields or member.epoch is None:
            return
        number = int(fields["batch"])
        other = self._runs[member.epoch].submit(member, number, message.payload)
        if other is not None:
            self._leave(member, keeps=True)
            raise Refusal({"differs": number, "there": other[:256].hex()})

    def _taken(self, member: GroupMember, lease: int, now: float) -> None:
        member.clock.taken(now)
        for run in self._runs.values():
            if (number := run.leased(lease)) is not None:
                run.epoch.taken(member.number, number)
                if member.progress is not None and member.epoch == run.key:
                    member.progress.delivered = number + 1

    def _released(self, member: GroupMember, lease: int) -> None:
        for run in self._runs.values():
            if (number := run.leased(lease)) is not None:
                run.epoch.released(member.number, number)

    def _add_worker(self, member: GroupMember, message: FdMessage) -> None:
        number = int(message.fields["number"])
        if number not in member.workers:
            raise ValueError(f"worker {number} is none of {member.workers}")
        # An earlier process with this number has ended, or could not be started.
        self._take_back(member, number)
        (message_fd,), message.fds = message.fds, ()
        self._workers.add(number, member, message_fd, self._look_at)

    def _look_at(self, record: WorkerRecord) -> None:
        """Handles the messages of a worker, or its end."""
        self._staging.receive()
        if has_ended(record):
            self._staging.recover(record)

    def _recover(self, member: GroupMember, number: int) -> None:
        self._take_back(member, number)
        member.reply({"recovered": number})

    def _take_back(self, member: GroupMember, number: int) -> None:
        record = self._workers.find(number)
        if record is not None and record.member is member:
            self._staging.recover(record)

    def _go_alone(self, member: GroupMember, fields: Fields, now: float) -> None:
        """Records the progress of a member that prepares alone."""
        epoch, delivered = int(fields["epoch"]), int(fields["delivered"])
        if member.epoch is not None:
            self._leave(member, keeps=True)
        if member.progress is None or member.progress.epoch != epoch:
            member.progress = MemberProgress(epoch, int(fields["total"]), now, delivered, delivered)
        member.progress.delivered = delivered

    def _end(self, member: GroupMember, fields: Fields, now: float) -> None:
        """Removes a member from its epoch, which it has finished or broken off."""
        key = member.epoch
        if key is not None and key in self._runs and fields["finished"]:
            run = self._runs[key]
            if key.first == 0 and (key.turn == 0 or key.epoch not in self._last):
                seconds = now - run.opened - run.waited
                self._last[key.epoch] = LastEpoch(seconds, run.starved / max(seconds, 1e-9))
            if key.first == 0 and len(run.epoch.joined) > 1:
                member.was_evicted = False
        self._leave(member, keeps=True)
        member.progress, member.ended = None, now
        member.finished = int(fields["epoch"]) if fields["finished"] else None

    # ---- between events ------------------------------------------------------------------------

    @property
    def needs_ticks(self) -> bool:
        """Whether something may change by time alone: members may become late, or read messages."""
        unsent = any(member.unsent for member in self.members.values())
        return unsent or any(run.epoch.members for run in self._runs.values())

    def runs(self) -> list[EpochRun]:
        return list(self._runs.values())

    def find_run(self, batch: StagedBatch) -> EpochRun:
        return self._runs[batch.key]

    def staging_limit(self, run: EpochRun) -> int:
        """Returns how many mini-batches of an epoch may be staged."""
        members = [self.members[number] for number in run.epoch.members]
        wanted = sum(member.in_flight for member in members)
        if self._staging.settings is None or self._staging.largest == 0:
            return max(wanted, _FEWEST)
        if self._limit is None:
            self._limit = objects.free() // _FREE_MEMORY_PARTS
        limits = [member.limit for member in members if member.limit is not None]
        limit = min(limits, default=self._limit)
        return max(min(wanted, limit // self._staging.largest), _FEWEST)

    def account(self, seconds: float, now: float) -> None:
        """Adds ``seconds`` to the waits of members that wait, and evicts members that are slow."""
        for run in self.runs():
            if run.epoch.is_starved():
                run.starved += seconds
            waiting, blocking = run.epoch.held_up(self.staging_limit(run))
            if not waiting or not blocking:
                for number in run.epoch.members:
                    self.members[number].clock.stalled_since = None
                continue
            pids = [self.members[number].pid for number in blocking]
            for number in waiting:
                waits = self.members[number].waits
                for pid in pids:
                    waits[pid] = waits.get(pid, 0.0) + seconds / len(pids)
            for number in blocking:
                member = self.members[number]
                member.clock.holds_up(seconds, now)
                why = leaves(member.clock.pace(now, len(waiting), len(blocking)))
                if why is not None:
                    self.evict(member, why)

    def send_unsent(self) -> None:
        """Sends members what their sockets have room for now, and evicts those that lose any."""
        for member in self.members.values():
            if not member.send_unsent():
                self.evict(member, LOST)

    def look_for_stopped(self, now: float) -> None:
        """Evicts members that a signal has stopped while mini-batches are ready for them."""
        for run in self.runs():
            for number in list(run.epoch.members):
                member = self.members[number]
                late = now - member.clock.last > 2 * (member.clock.usual or 0.0)
                if late and run.epoch.untaken(number) and member.is_stopped():
                    self.evict(member, "it was stopped by a signal")

    def look_for_lacking(self) -> None:
        """Evicts the members of an epoch who wait for a batch that there is no memory for."""
        for batch in self._staging.lacking():
            run = self.find_run(batch)
            if run.epoch.is_starved():  # else training may still release memory
                self.evict_all(run, batch.lack)

    def consider_gathering(self, run: EpochRun, now: float) -> None:
        """Closes an epoch to new members, unless one is about to join it."""
        epoch = run.epoch
        if not epoch.gathering or (epoch.members and not epoch.is_full(self.staging_limit(run))):
            return
        run.wait(now)
        last = self._last.get(run.key.epoch - 1, FIRST)
        coming = list(self._coming(run, now))
        for member, _ in coming:
            run.await_member(member)
        for member, seconds in coming:
            waited, doubtful = run.waited, member.was_evicted
            if member.progress is None:  # it is between two epochs, or has ended its training
                idle = now - member.ended
                waited = min(waited, idle) if seconds == 0 else waited
                doubtful = doubtful or seconds == 0 or idle > BETWEEN_SECONDS
            if waits_for(seconds, waited=waited, last=last, is_doubtful=doubtful):
                return
        epoch.gathering = False
        for member, _ in coming:
            member.waited_in_vain = True
            if is_slow(run.progress_of(member), waited=run.waited, last=last):
                member.was_evicted = True

    def _coming(self, run: EpochRun, now: float) -> Iterable[tuple[GroupMember, float]]:
        """Yields members that are about to begin an epoch, and the seconds until they do."""
        epoch = run.key.epoch
        for member in self.members.values():
            if member.waited_in_vain or not member.joined or member.epoch == run.key:
                continue
            seconds = None
            if member.progress is not None:
                seconds = member.progress.seconds_until(epoch, now)
            elif member.finished is not None and member.finished < epoch:
                last = self._last.get(member.finished, FIRST)
                seconds = (epoch - 1 - member.finished) * last.seconds
            if seconds is not None and not member.is_stopped():
                yield member, seconds

    def evict_all(self, run: EpochRun, why: str) -> None:
        """Has all members of an epoch prepare the rest of it alone."""
        for number in list(run.epoch.members):
            self.evict(self.members[number], why, may_return=False)

    def forget(self, run: EpochRun) -> None:
        """Drops an epoch that has neither members nor mini-batches left."""
        if not run.epoch:
            del self._runs[run.key]

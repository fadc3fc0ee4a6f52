"""A loader's membership in a group, over all of its iterators."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence

from fusionloader.data.epochs.epoch_state import EpochState
from fusionloader.engine.manager.manager import Manager
from fusionloader.observe.statistics.shared_prep import SharedPrepStats
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.sharing.jobs.address import connect, coordinator_address
from fusionloader.sharing.jobs.agreement import Agreement, total_batches
from fusionloader.sharing.jobs.connection import CoordinatorConnection, LeftGroup
from fusionloader.sharing.jobs.sample_lists import first_items
from fusionloader.system.fd_messages import Fields
from fusionloader.system.finalizers import ExitFinalizer
from fusionloader.workers.worker_set import WorkerSet

log = logging.getLogger("fusionloader.coordinated")

_REPORT_SECONDS = 0.2  # between two messages of a job that prepares alone
_MOST_WORKERS = 32  # numbers that a job reserves at least, so that workers may be added later
_ADVICE = {
    "seed": "give all of them the same seed=...",
    "sampler": "give all of them the same samplers",
    "total": "give all of them the same samplers",
    "fusionloader": "run all of them with one version",
}


class GroupMembership:
    """The membership of one loader; it stays connected while the loader prepares alone.

    Attributes:
        word: the value of ``share=``, the same in all jobs of the group.
        why_alone: why this job's own workers prepare the epoch; empty while the group does.
        control_fd: descriptor of the queue's control block, -1 before the first connection.
        data_fd: descriptor of the slots, -1 before the first connection.
        workers: numbers in the queue that this job's workers may have.
    """

    def __init__(self, word: str) -> None:
        self.word = word
        self.why_alone = "no epoch has begun"
        self.control_fd = self.data_fd = -1
        self.workers = range(0)
        self._pid = os.getpid()
        self._connection: CoordinatorConnection | None = None
        self._epoch: EpochState | None = None
        self._begun: EpochState | None = None
        self._total = -1
        self._delivered = 0
        self._reported_at = 0.0
        self._shared_batches = self._alone_batches = self._outside_batches = 0
        self._not_shared = 0  # mini-batches of the run that no other job was there for
        self._why_apart = ""
        self._earlier: list[CoordinatorConnection] = []
        self._agreed: Agreement | None = None
        self._running: WorkerSet | None = None
        self._end: Callable[[], object] = lambda: None

    def is_for(self, word: str) -> bool:
        """Whether this is a membership in the group of ``word``, and was made in this process."""
        return self.word == word and self._pid == os.getpid()

    @property
    def connection(self) -> CoordinatorConnection:
        """The last connection to the coordinator, open or closed."""
        assert self._connection is not None
        return self._connection

    # ---- an epoch ------------------------------------------------------------------------------

    def begin(self, agreement: Agreement, options: LoaderOptions, epoch: EpochState) -> None:
        """Begins an epoch in the group, or alone with a logged warning.

        Raises:
            ValueError: the jobs differ in something that has to be equal.
        """
        self._epoch = self._begun = epoch
        self._total, self._delivered = total_batches(options), 0
        self._why_apart = ""
        try:
            self._begin(agreement, options, epoch)
        except (OSError, LeftGroup) as why:
            self._go_alone(str(why))

    def begin_rest(self, agreement: Agreement, options: LoaderOptions) -> bool:
        """Begins the rest of an epoch anew, after this job had to leave the others.

        Returns ``False`` if this job's own workers have to prepare it.
        """
        epoch, connection = self._epoch, self.connection
        if epoch is None or not connection.may_return or epoch.ahead:
            return False
        why = connection.left
        self._begin(agreement, options, epoch)
        self._note_apart(why)
        return True

    def _begin(self, agreement: Agreement, options: LoaderOptions, epoch: EpochState) -> None:
        if epoch.ahead:
            raise LeftGroup("the resumed epoch has delivered mini-batches out of their order")
        if self._connection is None or not self._connection.is_open or agreement != self._agreed:
            self._join(agreement, options)
        key = {"epoch": epoch.epoch, "seed": epoch.seed, "first": epoch.delivered}
        answer = self.connection.ask({"do": "begin", **key, "total": self._total})
        if "refused" in answer:
            found = {"seed": epoch.seed, "total": self._total}
            self._refuse(answer, str(found[answer["refused"]]))
        if "alone" in answer:
            raise LeftGroup(str(answer["alone"]))
        self._alone_batches, self._not_shared = self._alone_batches + self._not_shared, 0
        self.connection.jobs, self.why_alone = tuple(map(int, answer["jobs"])), ""
        if answer.get("why_apart"):
            self._note_apart(str(answer["why_apart"]))

    def _note_apart(self, why: str) -> None:
        log.warning("share=%r: this epoch is prepared for this job alone: %s", self.word, why)
        self._why_apart = why

    def _join(self, agreement: Agreement, options: LoaderOptions) -> None:
        self._end()
        self._agreed = None  # after an exception below, the next epoch joins again
        earlier, self._connection = (
            self._connection,
            CoordinatorConnection(connect(coordinator_address(self.word))),
        )
        self._end = ExitFinalizer(self, _close, self._connection)
        if earlier is not None:
            self._earlier.append(earlier)
        count = max(options.num_workers, _MOST_WORKERS)
        wanted = {"in_flight": options.in_flight, "workers": count, "limit": options.shared_bytes}
        answer = self._connection.ask(
            {"do": "join", "equal": agreement.equal, **agreement.rows, **wanted}
        )
        if "refused" in answer and earlier is not None:  # it was a member, and has changed since
            self._connection.close()
            raise LeftGroup(f"{answer['refused']} is no longer that of the other jobs")
        if "refused" in answer:
            self._refuse(answer, agreement.equal[answer["refused"]])
        if "joined" not in answer:
            self._connection.close()
            raise LeftGroup(str(answer.get("alone", "the group has no room for more workers")))
        self.control_fd, self.data_fd = self._connection.fds
        begin = int(answer["joined"])
        self.workers = range(begin, begin + count)
        self._agreed = agreement

    def _refuse(self, answer: Fields, here: str) -> None:
        name = answer["refused"]
        self.connection.close()
        raise ValueError(
            f"jobs that share {self.word!r} have to agree in all that makes a batch, and {name} is "
            f"{here} here and {answer['there']} in the job with pid {answer['pid']}: "
            f"{_ADVICE.get(name, 'make it equal')}, or give this one another word"
        )

    def _go_alone(self, why: str) -> None:
        log.warning("share=%r: this job prepares this epoch alone: %s", self.word, why)
        self.why_alone = why
        self._reported_at = 0.0

    def is_for_epoch(self, epoch: EpochState) -> bool:
        """Whether ``epoch`` was begun last; logs a warning if another one was begun since."""
        if epoch is not self._begun:
            text = "share=%r: an iterator prepares its epoch alone: another one has begun an epoch"
            log.warning(text, self.word)
        return epoch is self._begun

    def is_served_by(self, manager: Manager | None) -> bool:
        """Whether a manager can serve the epoch: in the group, or alone."""
        if manager is None or manager.closed:
            return False
        together = None if self.why_alone else self._connection
        return getattr(manager, "connection", None) is together

    def run_workers(self, workers: WorkerSet) -> None:
        """Registers the workers that have this job's numbers, and ends those that had them before.

        Earlier ones still run if an iterator was interrupted while it was made, and is referenced.
        """
        if self._running is not None:
            end_at_once(self._running)
        self._running = workers

    def check(self) -> None:
        """Checks that this job is still a member of the epoch.

        Raises:
            LeftGroup: the job has to go on alone.
            ValueError: its first mini-batch differs from that of the other jobs.
        """
        connection = self.connection
        if connection.differs is not None:
            number, there = connection.differs
            text = f"mini-batch {number} of the epoch has other samples than in another job"
            if self._delivered == 0:
                raise ValueError(
                    f"jobs that share {self.word!r} have to draw the same mini-batches, and {text} "
                    f"(there it begins with {first_items(there)}): give the samplers of all jobs "
                    "the same seed, generator=torch.Generator().manual_seed(...), or this job "
                    "another word"
                )
            raise LeftGroup(text)
        if connection.left or not connection.is_open:
            raise LeftGroup(connection.left)

    def leave(self, why: str) -> None:
        """Has the job prepare the rest of the epoch alone."""
        self._go_alone(why)
        self.connection.drop_prepared()
        self._report_progress()

    def delivered(self, number: int) -> None:
        """Counts a delivered mini-batch; reports the progress of a job that prepares alone."""
        if not (self.why_alone or self.connection.is_prepared(number)):
            return  # it was taken and counted before an exception
        self._delivered += 1
        if self.why_alone:
            self._outside_batches += 1
            self._report_progress()
        elif self.connection.prepared(number).is_shared:
            # Jobs join until the first mini-batch is recycled, and get those before, too.
            earlier, self._not_shared = self._not_shared, 0
            self._shared_batches += 1 + earlier
        else:
            self._not_shared += 1

    def _report_progress(self) -> None:
        """Reports the progress, from which the coordinator predicts when the next epoch begins."""
        now, epoch = time.monotonic(), self._epoch
        if self._connection is None or epoch is None or now - self._reported_at < _REPORT_SECONDS:
            return
        self._reported_at = now
        progress = {"epoch": epoch.epoch, "delivered": epoch.delivered, "total": self._total}
        self._connection.send({"do": "alone", **progress})
        self._connection.flush()
        self._connection.receive(0.0)

    def end_epoch(self, finished: bool) -> None:
        """Leaves the epoch; ``finished`` says whether all of it was delivered."""
        if self._connection is not None and self._epoch is not None:
            self._connection.drop_prepared()
            self._connection.flush()
            self._connection.send({"do": "end", "epoch": self._epoch.epoch, "finished": finished})
        self._epoch = None

    # ---- what is known -------------------------------------------------------------------------

    def stats(self, made_here: int) -> SharedPrepStats:
        """Returns what was counted; ``made_here``: samples that this job's workers have made."""
        connections: Sequence[CoordinatorConnection] = [*self._earlier]
        if self._connection is not None:
            connections = [*connections, self._connection]
        made = [each.made.copy() for each in connections]
        waits: dict[int, float] = {}
        for each in connections:
            for pid, seconds in each.waits.copy().items():
                waits[pid] = waits.get(pid, 0.0) + seconds
        elsewhere = sum(each.total() - each[self._pid] for each in made)
        jobs = () if self.why_alone else self.connection.jobs
        return SharedPrepStats(
            word=self.word,
            together=bool(jobs),
            why_alone=self.why_alone or self._why_apart,
            jobs=jobs,
            shared_batches=self._shared_batches,
            alone_batches=self._alone_batches + self._not_shared + self._outside_batches,
            outside_batches=self._outside_batches,
            made_here=made_here,
            made_elsewhere=elsewhere,
            waited_for=waits,
        )

    def close(self) -> None:
        """Leaves the group; the next epoch joins it again."""
        self._epoch = None
        self._end()


def end_at_once(workers: WorkerSet) -> None:
    """Kills workers; the coordinator takes back their claims."""
    try:
        _kill(workers)
    except BaseException:  # it may have come before the last of them was killed
        _kill(workers)
        raise
    finally:
        workers.end()


def _kill(workers: WorkerSet) -> None:
    for worker in workers.workers:
        worker.process.kill()


def _close(connection: CoordinatorConnection) -> None:
    connection.close()
    fds, connection.fds = connection.fds, ()
    for fd in fds:
        os.close(fd)

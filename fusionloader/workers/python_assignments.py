"""A Python worker's side of sharing: makes samples of another rank with its own dataset.

The global manager sends workers only to ranks with the same dataset and code, and draws are seeded
for each sample, so the samples are those that the other rank's workers make. A worker cannot report
anything there: it gives back what needs a report (an error, a sample of another layout), and a
worker of that rank makes it again. It also gives back what code has made that asks for its rank,
and is sent nowhere from then on.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from fusionloader import _native
from fusionloader._native import End, TinyBatchState, WorkerActivity
from fusionloader.system.fd_messages import FdMessage
from fusionloader.transforms.executors.batch_transport import pack_into
from fusionloader.workers import messages, rank_reads
from fusionloader.workers.assignments import Assignments
from fusionloader.workers.batch_worker import BatchWorker, Collating
from fusionloader.workers.python_worker import PythonWorker, PythonWorkerConfig


class _Borrowed(PythonWorker):
    """Works in the queue of another rank."""

    def _send(self, message: messages.Message) -> None:
        pass  # what it is about is given back

    def _finish(self, claim: _native.Claim, tiny_batch: int, state: TinyBatchState) -> None:
        if state is TinyBatchState.COMPLETED and not rank_reads.found():
            super()._finish(claim, tiny_batch, state)
        else:
            self.queue.give_back(claim, tiny_batch)


class BorrowedSampleWorker(_Borrowed):
    """Writes samples into the rows of another rank's mini-batches."""

    def may_claim(self) -> bool:
        """Whether the layout is known, which a borrowed worker cannot report."""
        return bool(self.queue.layout_version)


class _WantedAtHome(BaseException):
    """Ends a claim of another rank; no error of a sample."""


class BorrowedBatchWorker(_Borrowed, BatchWorker):
    """Writes whole mini-batches into the memory that another rank has for them.

    One may take long. So the worker looks between two samples whether its own rank needs it: that
    is, has a mini-batch to claim, and none that is complete. Then it gives back what is less than
    half made. To give back every mini-batch would waste most of the work, since ranks ask for a
    batch more often than a slow one is made.
    """

    def __init__(
        self,
        home: PythonWorker,
        config: PythonWorkerConfig,
        queue: _native.WorkerQueue,
        collating: Collating,
    ) -> None:
        super().__init__(config, home.source, queue, None, collating)
        self._home = home
        self._seen_at_home: int | None = None
        self._begun = 0  # samples of the claim

    def _serve_claim(self, claim: _native.Claim) -> None:
        self._seen_at_home, self._begun = None, 0
        try:
            super()._serve_claim(claim)
        except _WantedAtHome:
            self.queue.end_samples(claim, claim.first, 0)
            self.queue.end_span(claim, claim.first, 1, rest_is_python=True)
            self.queue.give_back(claim, claim.first)

    def _interruptible(self, make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def make_unless_wanted(key: Any) -> Any:
            if self._is_wanted_at_home():
                raise _WantedAtHome
            self._begun += 1
            return make(key)

        return make_unless_wanted

    def _is_wanted_at_home(self) -> bool:
        queue = self._home.queue
        if queue.stopping or self._home.is_recalled:
            return True
        assert self._claim is not None
        if queue.ready() or 2 * self._begun > self._claim.samples:
            return False
        seen = queue.work_word
        if seen == self._seen_at_home:
            return False
        self._seen_at_home = seen
        found = queue.claim(End.SMALL, 0, 1)
        if found is not None:
            queue.give_back(found, found.first)  # claimed again when this claim has ended
        queue.idle()
        return found is not None

    def _sent(self, claim: _native.Claim, batch: object) -> TinyBatchState:
        state = TinyBatchState.FAILED
        with contextlib.suppress(Exception):  # own workers report what cannot be pickled
            pack_into(batch, self.queue.rows(claim))
            state = TinyBatchState.COMPLETED
        self.queue.end_samples(claim, claim.first, 0)
        return state


class PythonAssignments(Assignments[PythonWorker]):
    """Follows the global manager's assignments between two claims of a worker's own rank."""

    def __init__(self, worker: PythonWorker, of_pool: bool) -> None:
        self._worker = worker
        config = worker.config
        self._shared = _native.SharedWorker(worker.queue, config.event.fd, of_pool)
        super().__init__(self._shared, config.address)

    def serve(self) -> bool:
        """Follows an assignment, or serves one claim of another rank; ``False`` without either."""
        if rank_reads.found():
            self.leave(for_good=True)
            return False
        if not self._shared.obey():
            self.follow()
            return True
        borrowed = self._attached
        if borrowed is None:
            return False
        if not borrowed.may_claim():
            self._shared.leave_guest_slot()
            return False
        claim = self._shared.claim(borrowed.claim_size)
        if claim is None:
            return False
        borrowed.serve_claim(claim)
        return True

    def report(self, activity: WorkerActivity) -> None:
        """Tells the global manager what the worker does."""
        self._shared.report(WorkerActivity.ABSENT if rank_reads.found() else activity)

    def leave(self, for_good: bool) -> None:
        """Holds no place at another rank any more; with ``for_good`` none is assigned, either."""
        self._shared.leave_guest_slot()
        if for_good:
            self._shared.withdraw()
            self.detach()

    def _attach(self, member: int, answer: FdMessage, data_fd: int) -> PythonWorker:
        # The worker takes a guest slot before it claims; until then the number has no meaning.
        queue = _native.WorkerQueue(answer.fds[0], data_fd, 0)
        config = replace(self._worker.config, on_error="raise")
        worker: PythonWorker
        if isinstance(config.whole, Collating):
            collating = config.whole._replace(sends=None)
            worker = BorrowedBatchWorker(self._worker, config, queue, collating)
        else:
            worker = BorrowedSampleWorker(config, self._worker.source, queue, None)
        self._shared.attach(member, queue)  # last: it has only a pointer to the queue
        return worker

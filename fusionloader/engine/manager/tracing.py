"""Records what the workers of a local manager do in a trace.

The training process looks while it waits, and when a batch is done. Workers write their spans into
rings (csrc/queue/trace_ring.hpp). Other events are found by comparison with the previous look.
"""

from __future__ import annotations

import os
import time
from collections import Counter

from fusionloader import _native
from fusionloader.engine.manager.in_flight import InFlight, Job
from fusionloader.engine.manager.loader_workers import LoaderWorkers
from fusionloader.observe.trace.recorder import Recorder
from fusionloader.observe.trace.timeline import READY, Instant, Span, Worker
from fusionloader.system.shm import objects

_POLL_SECONDS = 0.1


class ManagerTrace:
    """The ``Feed`` of one local manager; does nothing until ``begin``."""

    def __init__(
        self,
        control_fd: int,
        queue: _native.ManagerQueue,
        in_flight: InFlight,
        workers: LoaderWorkers,
    ) -> None:
        """``control_fd`` is the descriptor of the queue's memory."""
        self._control_fd = control_fd
        self._queue, self._in_flight, self._workers = queue, in_flight, workers
        self._recorder: Recorder | None = None

    def begin(self, recorder: Recorder, iterator: int) -> None:
        """Raises SharedMemoryExhausted if there is too little memory for the workers' spans."""
        objects.allocate(self._control_fd, 0, os.fstat(self._control_fd).st_size, "a trace")
        self._recorder, self._iterator = recorder, iterator
        self._begin_ns = time.monotonic_ns()
        self._polled = 0.0
        self._batches: dict[int, tuple[int, int]] = {}  # epoch and number, by sequence
        self._found: list[_native.WorkerSpan] = []  # added to the recorder at the end
        self._count, self._restarted = self._workers.count, self._restarts()
        for each in self._workers.participants:
            each.trace_began()
        for job in self._in_flight:
            self.published(job)
        recorder.knows(map(self._worker, self._numbers))
        self._queue.set_tracing(True)

    def published(self, job: Job) -> None:
        """Called when workers may claim a mini-batch."""
        if self._recorder is not None:
            self._batches[job.sequence] = job.batch.epoch, job.number

    def taken_out(self, job: Job) -> None:
        """Called when a mini-batch is done, before its slot is freed."""
        if self._recorder is None:
            return
        shares = self._queue.shares(job.slot)
        seconds = max(shares.cpu.finished_seconds, shares.gpu.finished_seconds)
        job.complete_ns = round(seconds * 1e9)
        self.look()
        self._recorder.count(READY, self._in_flight.ready)

    def look(self) -> None:
        """Records events since the last look. It must be quick, because training waits."""
        recorder = self._recorder
        if recorder is None:
            return
        self._found += self._queue.take_spans()
        now = time.monotonic()
        self._trace_participants(recorder, thoroughly=False)
        if now - self._polled >= _POLL_SECONDS:
            self._polled = now
            self._poll(recorder)

    def end(self) -> None:
        recorder = self._recorder
        if recorder is not None:
            self.look()
            self._poll(recorder)
            self._queue.set_tracing(False)
            self._recorder = None
            self._add_found(recorder)

    def _poll(self, recorder: Recorder) -> None:
        recorder.lost += self._queue.take_lost_spans()
        self._look_at_processes(recorder)
        self._trace_participants(recorder, thoroughly=True)

    def _trace_participants(self, recorder: Recorder, thoroughly: bool) -> None:
        for each in self._workers.participants:
            each.trace(recorder, thoroughly)

    # ---- workers -------------------------------------------------------------------------------

    @property
    def _numbers(self) -> list[int]:
        found = [*range(self._workers.count)]
        for each in self._workers.participants:
            found += range(each.first, each.first + each.cores)  # guests are added when they come
        return found

    def _worker(self, number: int) -> Worker:
        participant = self._workers.find_participant(number)
        return Worker(number, "cpu" if participant is None else participant.kind)

    def _add_found(self, recorder: Recorder) -> None:
        pids: dict[int, int] = {}  # last pids of borrowed workers
        for found in self._found:
            # Skip a span that began before this trace, while an earlier one was recorded.
            if found.begin_ns < self._begin_ns or found.sequence not in self._batches:
                continue
            worker = self._worker(found.worker)
            recorder.knows([worker])
            if worker.kind == "borrowed" and pids.get(found.worker) != found.pid:
                pids[found.worker] = found.pid
                text = f"a worker of another rank (pid {found.pid}) works here"
                recorder.instants.append(Instant(found.begin_ns, "borrowed", text, found.worker))
            self._add(recorder, found, *self._batches[found.sequence])
        self._found.clear()

    def _add(self, recorder: Recorder, found: _native.WorkerSpan, epoch: int, number: int) -> None:
        recorder.spans.append(
            Span(
                worker=found.worker,
                pid=found.pid,
                iterator=self._iterator,
                epoch=epoch,
                batch=number,
                first=found.first,
                count=found.count,
                samples=found.samples,
                nbytes=found.read_bytes,
                begin_ns=found.begin_ns,
                end_ns=found.end_ns,
                read_ns=found.read_ns,
                decode_ns=found.decode_ns,
                augment_ns=found.augment_ns,
                python_ns=found.python_ns,
                write_ns=found.write_ns,
            )
        )

    def _look_at_processes(self, recorder: Recorder) -> None:
        count, restarts = self._workers.count, self._restarts()
        if count != self._count:
            recorder.instant("workers", f"{count} workers instead of {self._count}")
        for number in restarts - self._restarted:
            recorder.instant("restart", f"{self._worker(number).name} died and is replaced", number)
        self._count, self._restarted = count, restarts

    def _restarts(self) -> Counter[int]:
        participants = self._workers.participants
        others = {each.first: each.restarts for each in participants if each.restarts}
        return self._workers.restarts + Counter(others)

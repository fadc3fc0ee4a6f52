"""The queue of encoded images: publication, results and failures, dead workers.

An image is copied into a slot of shared memory, behind the descriptor of a mini-batch that has it
as a tiny-batch. Workers claim it like a sample of a dataset, and write its row. Any thread
publishes; one thread, the dispatcher, finds finished jobs.

Why it is right: A mini-batch is released when none of its state words is waiting or active, and no
worker touches its slot after that. The images of a dead worker become waiting again. A mini-batch
that is given up is withdrawn: a worker that has begun one of its images may finish, and none begins
another. Sequence numbers are assigned and published under one lock, so that workers see no gap. The
ring of mini-batches in flight cannot overflow: ``has_room`` leaves a place in it for each image
that was admitted.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from fusionloader import _native
from fusionloader._native import TinyBatchState
from fusionloader.addons.inference.errors import PreprocessorClosed
from fusionloader.addons.inference.memory import SizedSlots
from fusionloader.addons.inference.options import PreprocessorOptions
from fusionloader.addons.inference.requests import RequestJob, RequestRows
from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.engine.manager.loader_workers import LoaderWorkers
from fusionloader.engine.manager.options import ManagerOptions, StartWorker
from fusionloader.engine.manager.participant import Hub
from fusionloader.engine.manager.publications import OpenPublications
from fusionloader.observe.statistics.worker_totals import WorkerTotals
from fusionloader.scheduler.tiny_batches import order_by_size
from fusionloader.system.shm import objects
from fusionloader.system.shm.slots import Arena, PageLocking, Slot
from fusionloader.transforms.executors.layout import Leaf
from fusionloader.workers import messages
from fusionloader.workers.sample_errors import raise_failure

log = logging.getLogger("fusionloader.inference")

Image = bytes | bytearray | memoryview
"""An encoded image: an object with a contiguous buffer of bytes."""

Target = Callable[[], tuple[RequestRows, int]]
"""Assigns rows to a request; returns them, and the number of the first image's row."""

_TINY = 1  # images of a tiny-batch: each is claimed, and fails, by itself
_LOOK_SECONDS = 0.1
_SEARCH_SECONDS = 1.0
_PATIENCE_SECONDS = 10.0  # without any worker


class RequestQueue:
    """The queue, its memory, and its workers.

    Attributes:
        lock: held while jobs are published or taken out.
        refusal: why nothing is published any more; ``None`` while it is open.
    """

    def __init__(
        self,
        options: PreprocessorOptions,
        leaf: Leaf,
        starter: Callable[[DatasetTable], StartWorker],
        page_locking: PageLocking | None,
    ) -> None:
        """``leaf`` describes a row; ``starter`` returns a function that starts workers."""
        self._options, self._leaf = options, leaf
        self.lock = threading.Lock()
        self.refusal: str | None = None
        workers = options.num_workers
        manager_options = ManagerOptions(
            workers=workers,
            in_flight=0,
            tiny_batch_size=_TINY,
            timeout=0,
            name=str,
            worker_kind="native",
        )
        self._workers = LoaderWorkers(manager_options, workers)
        self._arena = Arena()
        self._ring_size = 2 * options.max_queued + 2
        self._control = objects.ControlBlock(workers, self._ring_size)
        fds = self._control.fd, self._arena.fd
        self._queue = _native.ManagerQueue(*fds, workers, self._ring_size)
        self._descriptors = SizedSlots(self._arena, self._queue, steps=1)
        self._rows = SizedSlots(self._arena, self._queue, 4, page_locking)
        self._table = DatasetTable.of_files([], [])  # images come with their requests
        self._jobs: OpenPublications[RequestJob] = OpenPublications(self._queue, self._ring_size)
        self._looked = self._searched = 0.0
        self._failed_worker: messages.WorkerFailed | None = None
        self._without_workers: float | None = None  # since this time
        self._warned = False  # of workers that cannot be replaced
        self._published_then = 0  # sequence at the last search
        try:
            hub = Hub(self._queue, *fds, workers, workers)
            self._workers.start(hub, starter(self._table))
        except BaseException:
            self.end()
            raise

    # ---- publishing, by any thread -------------------------------------------------------------

    def has_room(self) -> bool:
        """Whether the ring has places beyond those of admitted images."""
        return self._jobs.ring_room > self._options.max_queued

    def new_rows(self, count: int) -> RequestRows:
        """Returns a slot for ``count`` results; the lock is held.

        Raises:
            SharedMemoryExhausted: there is too little memory.
        """
        slot = self._rows.acquire(count * self._leaf.nbytes)
        return RequestRows(slot, self._rows.lease(slot), self._leaf, count)

    def publish(
        self, job: RequestJob, images: Sequence[Image], epoch: int, prepare: Callable[[], Target]
    ) -> None:
        """Copies images into shared memory and has workers prepare them.

        Args:
            job: gets its sequence number and its slot.
            images: one for each key of the job.
            epoch: epoch of the random draws.
            prepare: called when the order of publications is decided. It does everything that may
                fail; the target that it returns does not.

        Raises:
            PreprocessorClosed: it was closed meanwhile.
            SharedMemoryExhausted: there is too little memory.
        """
        sizes = [memoryview(image).nbytes for image in images]
        job.order = order_by_size(sizes)
        queue = self._queue
        with self.lock:
            self.check_open()
            nbytes = queue.encoded_bytes(len(images), _TINY, sum(sizes))
            descriptor = self._descriptors.acquire(nbytes)
        try:
            queue.write_encoded(descriptor.number, images, _TINY)
            with self.lock:
                self.check_open()
                target = prepare()
                try:
                    self._publish(job, descriptor, target, epoch)
                except BaseException as error:
                    self._refuse_after(error)
                    raise
        except BaseException:
            if job.descriptor is None:
                with self.lock:
                    self._descriptors.release(descriptor)
            raise

    def _publish(self, job: RequestJob, descriptor: Slot, target: Target, epoch: int) -> None:
        """Publishes a prepared job; an exception in between leaves the queue half changed."""
        rows, first = target()
        sequence = self._queue.published
        self._queue.describe_encoded(
            descriptor.number,
            sequence=sequence,
            rows=job.order,
            keys=job.keys,
            tiny_size=_TINY,
            seed=self._options.seed or 0,
            epoch=epoch,
            payload=rows.slot.number,
            first_row=first,
            payload_rows=rows.count,
        )
        job.sequence, job.descriptor = sequence, descriptor
        self._jobs.publish(job, len(job.keys))

    def _refuse_after(self, error: BaseException) -> None:
        """Refuses further publications, after an exception such as Ctrl-C during one."""
        self.refusal = (
            f"this Preprocessor cannot go on: {error!r} was raised while an image was published, "
            "and what of it is in the queue is not known: make another one"
        )
        self._queue.wake_manager()

    def check_open(self) -> None:
        if self.refusal is not None:
            raise PreprocessorClosed(self.refusal)

    def withdraw(self, job: RequestJob) -> None:
        """Keeps workers from beginning further images of a job; the lock is held."""
        if self._jobs.find(job.sequence) is not None:
            job.withdrawn = True
            self._queue.withdraw_one(job.slot, job.sequence)
            self._queue.wake_manager()

    def wake(self) -> None:
        """Wakes the dispatcher; safe in any thread and in a finalizer."""
        self._queue.wake_manager()

    # ---- results, by the dispatcher ------------------------------------------------------------

    def word(self) -> int:
        """Returns a word that changes when an image is done or ``wake`` was called."""
        return self._queue.done_word()

    def sleep(self, seen: int, seconds: float) -> None:
        """Sleeps until ``word()`` is no longer ``seen``, at most ``seconds`` and 0.1 s.

        Workers are checked every 0.1 s.
        """
        self._workers.sleep(seen, max(0.0, min(seconds, _LOOK_SECONDS)))

    def is_done(self, job: RequestJob) -> bool:
        """Whether workers have finished with a job; then ``job.failures`` is complete."""
        status = self._queue.status(job.slot)
        if not status.done:
            return False
        if status.failed or job.failures:
            self._receive()  # a failure is sent before the state changes
            self._compare_failures(job)
        return True

    def _compare_failures(self, job: RequestJob) -> None:
        """Makes the job's failures agree with the states of its tiny-batches."""
        done = self._queue.in_state(job.slot, TinyBatchState.COMPLETED)
        completed = {each.tiny_batch for each in done}
        for tiny_batch in range(len(job.keys)):
            if tiny_batch in completed:
                job.failures.pop(tiny_batch, None)  # another worker has repeated it
            elif tiny_batch not in job.failures:
                key = job.key_of(tiny_batch)
                text = f"a worker has failed at an image, key {key}, and has not said why"
                job.fail(tiny_batch, RuntimeError, text)

    def take_out(self, job: RequestJob) -> None:
        """Frees the slot of a job that is done; the lock is held."""
        assert job.descriptor is not None
        self._jobs.take_out(job)
        self._descriptors.release(job.descriptor)

    def look(self) -> bool:
        """Checks the workers, at most every 0.1 s; returns whether it did.

        Raises:
            RuntimeError: workers cannot be started.
        """
        now = time.monotonic()
        if now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        self._receive()
        if self._options.timeout:
            self._end_overdue(now)
        self._replace_dead(now)
        if self._failed_worker is not None:
            raise_failure(self._failed_worker.failure)
        self._search(now)
        return True

    def _replace_dead(self, now: float) -> None:
        """Replaces dead workers; a start that fails is tried again later."""
        try:
            self._workers.look(self._note, self._jobs)
        except OSError as error:
            if any(process.is_alive() for process in self._workers.processes):
                self._without_workers = None
            elif self._without_workers is None:
                self._without_workers = now
            elif now - self._without_workers > _PATIENCE_SECONDS:
                raise
            if not self._warned:
                log.warning("a worker that died cannot be replaced now, but later: %s", error)
            self._warned = True
        else:
            self._without_workers, self._warned = None, False

    def _search(self, now: float) -> None:
        """Makes workers search jobs that have waited long.

        A worker that was stopped in the middle of a claim may have skipped a tiny-batch.
        """
        if now - self._searched < _SEARCH_SECONDS:
            return
        self._searched = now
        with self.lock:
            for job in self._jobs:
                if job.sequence < self._published_then and not job.withdrawn:
                    self._queue.search(job.slot)
            self._published_then = self._queue.published

    def trim(self) -> None:
        """Returns the memory of free slots to the system; the lock is held."""
        self._descriptors.trim()
        self._rows.trim()

    def _receive(self) -> None:
        self._workers.handle(self._note)

    def _note(self, message: messages.Message) -> None:
        if isinstance(message, messages.WorkerFailed):
            self._failed_worker = message
        if isinstance(message, messages.TinyBatchFailed):
            job = self._jobs.find(message.sequence)
            if job is not None:
                job.failures[message.tiny_batch] = message.failure

    def _end_overdue(self, now: float) -> None:
        """Kills workers that exceed the timeout of an image; the image fails."""
        for process, record in zip(
            self._workers.processes, self._queue.workers(0, self._options.num_workers), strict=True
        ):
            job = None if record.sequence is None else self._jobs.find(record.sequence)
            if job is None or now - record.since_seconds < self._options.timeout:
                continue
            job.overdue[record.tiny_batch] = (
                f"an image, key {job.key_of(record.tiny_batch)}, took more than "
                f"{self._options.timeout} s, the timeout: its worker was ended"
            )
            process.kill()

    # ---- the whole -----------------------------------------------------------------------------

    def totals(self) -> WorkerTotals:
        """Returns the workers' counters; any thread may call it, also after the end."""
        return self._workers.totals(in_flight=len(self._jobs))

    @property
    def resident_bytes(self) -> int:
        return self._descriptors.resident_bytes + self._rows.resident_bytes

    def end(self) -> None:
        """Ends the workers and frees the memory; delivered tensors stay valid."""
        self._queue.stop()
        self._workers.end()
        self._arena.close()
        self._control.close()

"""The local manager: mini-batches in flight, from publication to delivery.

It runs inside ``__next__``: there is nothing to decide while nobody asks for a batch, since several
mini-batches are published ahead and workers need no manager to claim from them.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from fusionloader import _native
from fusionloader.executors.layout import Layout
from fusionloader.gpu.control import Connections, GpuControl
from fusionloader.manager import stalls
from fusionloader.manager.batch_memory import BatchMemory
from fusionloader.manager.in_flight import InFlight
from fusionloader.manager.mini_batches import Job, MiniBatch, job_of
from fusionloader.manager.options import ManagerOptions
from fusionloader.manager.worker_report import worker_report
from fusionloader.pool.binding import PoolBinding
from fusionloader.ranks.borrowed_workers import BorrowedWorkers
from fusionloader.ranks.membership import GUEST_SLOTS, Membership
from fusionloader.shm import objects
from fusionloader.shm.slots import Arena
from fusionloader.workers import messages
from fusionloader.workers.cpus import lease
from fusionloader.workers.processes import Process
from fusionloader.workers.worker_set import WorkerSet

log = logging.getLogger("fusionloader.manager")

_SLEEP_SECONDS = 0.1
_DEVICE_SECONDS = 0.0005
_MOST_DEATHS = 3


class PlanOutdated(Exception):
    """``worker_init_fn`` changed the dataset that the plan was made of."""


class NoFixedLayout(Exception):
    """Samples cannot be written row by row; the message says why."""


class LocalManager:
    """Publishes mini-batches to its workers and hands out those that are done."""

    def __init__(
        self,
        options: ManagerOptions,
        layout: Layout | None,
        start: Callable[[LocalManager, int, int], Process],
    ) -> None:
        """``start(manager, number, message_fd)`` starts a worker process."""
        self._options = options
        self._pid = os.getpid()
        self._sequence = 0
        self.closed = False
        objects.sweep()
        self._count = options.workers
        self._most_in_flight = options.in_flight
        self._most = max(options.workers, options.most_workers)
        ring = options.in_flight * self._most // max(options.workers, 1) * 2 + 2
        workers = self._most + (options.gpu is not None)
        self.membership: Membership | None = None
        self._borrowed_workers: BorrowedWorkers | None = None
        guest_slots, shareable, event_fd = 0, 0, -1
        if options.sharing_offer is not None:
            self.membership = Membership(options.sharing_offer)
            guest_slots, shareable, event_fd = GUEST_SLOTS, self._most, self.membership.event_fd
        self._first_guest_slot = workers
        self.control_fd = objects.create(
            _native.ManagerQueue.control_bytes(workers + guest_slots, ring)
        )
        self.arena = Arena()
        self.queue = _native.ManagerQueue(
            self.control_fd, self.arena.fd, workers, ring, guest_slots, shareable, event_fd
        )
        if self.membership is not None:
            self._borrowed_workers = BorrowedWorkers(self.queue, self.membership, workers)
        self.outstanding: list[Job] = []
        self.in_flight = InFlight(self.queue, self.outstanding)
        self._ring = ring
        self.memory = BatchMemory(options, self.arena, self.queue, ring)
        self.pool_binding: PoolBinding | None = None
        if options.pool is not None:
            fds = {"control_fd": self.control_fd, "data_fd": self.arena.fd}
            self.pool_binding = PoolBinding(options.pool, self.queue, fds)
        wish = "off" if options.pool is not None else options.cpu_affinity
        self.cores = lease(wish, options.workers, others=int(options.gpu is not None))
        self._workers: WorkerSet | None = None
        self.gpu: GpuControl | None = None
        # Not through a strong reference: a cycle would keep the batches' memory until it is found.
        this = weakref.ref(self)

        def launch(number: int, message_fd: int) -> Process:
            manager = this()
            assert manager is not None
            return start(manager, number, message_fd)

        try:
            if layout is not None:
                self.memory.settle(layout, ())
            if options.gpu is not None:  # first: it has the most to build
                self.gpu = GpuControl(
                    self.queue,
                    Connections(self.control_fd, self.arena.fd, self.memory.shared_buffers()),
                    self._most,
                    options.workers,
                    options.in_flight,
                    options.gpu,
                )
            self._workers = WorkerSet(options.workers, launch)
            if self.pool_binding is not None:
                self.pool_binding.workers = self._workers
            if self.membership is not None:
                self.membership.join(self.control_fd, self.arena.fd)
        except BaseException:
            self.close()
            raise

    @property
    def worker_count(self) -> int:
        """How many CPU workers there are to be."""
        return self._count

    def resize(self, count: int) -> None:
        """Has ``count`` CPU workers from now on, or as many as there is room for.

        What one that is ended was at is done again by another.
        """
        wanted = min(count, self._most)
        if wanted < count:
            log.warning("this iterator goes on with %d workers: it has no room for more", wanted)
        assert self._workers is not None
        self._most_in_flight = max(self._options.in_flight * wanted // self._options.workers, 1)
        for death in self._workers.retire(wanted):
            for message in death.last_words:
                self._handle(message)
            self.queue.take_back(death.number)
        before, self._count = self._count, wanted
        for number in range(before, wanted):
            self._workers.add(number)
        if self.gpu is not None:
            self.gpu.cpu_workers = wanted

    # ---- publishing ----------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """Mini-batches that may be published now."""
        return self._most_in_flight - self.in_flight.wanted

    def submit(self, batch: MiniBatch, number: int) -> Job:
        """Publishes a mini-batch; ``number`` is the caller's."""
        while len(self.outstanding) >= self._ring:  # discarded ones that a worker still holds
            self._look()
            if len(self.outstanding) >= self._ring:
                self.queue.sleep(self.queue.done_word(), _SLEEP_SECONDS)
        descriptor, rows = self.memory.descriptor_for(batch), self.memory.rows_for(batch)
        job = Job(batch, number, self._sequence, descriptor, rows)
        self.queue.describe(
            descriptor.number,
            sequence=job.sequence,
            rows=batch.rows,
            items=batch.items,
            keys=batch.keys,
            occurrences=batch.occurrences,
            tiny_size=self._options.tiny_batch_size,
            seed=batch.seed,
            epoch=batch.epoch,
            number=number,
            group_size=self._options.group_size,
            payload=rows.number if rows else None,
            indices=batch.pickled,
        )
        self.outstanding.append(job)
        self._sequence += 1
        if self.gpu is not None and self._options.ring is None:
            self.queue.set_gpu_rows(descriptor.number, 1)
        if self.pool_binding is not None:
            self.pool_binding.call()
        self.queue.publish(descriptor.number, job.sequence)
        if self.gpu is not None:
            self.memory.give_buffers(self.outstanding)
        return job

    # ---- waiting -------------------------------------------------------------------------------

    def next_done(self, in_order: bool) -> Job:
        """Waits for the oldest mini-batch, or with ``in_order=False`` for any, and takes it out.

        Raises:
            NoFixedLayout: samples cannot be written row by row.
            PlanOutdated: workers have another dataset than the plan.
            RuntimeError: after ``timeout`` seconds, or when workers cannot be started.
        """
        try:
            return self._wait_for_done(in_order)
        finally:  # what comes next allocates on the device, or is the caller's own work
            if self.gpu is not None:
                self.gpu.waited()

    def _wait_for_done(self, in_order: bool) -> Job:
        start = time.monotonic()
        warn_at = start + stalls.WARN_SECONDS
        while True:
            seen = self.queue.done_word()
            if (
                self.pool_binding is not None
            ):  # again and again: other threads may wait for other loaders
                self.pool_binding.call()
            self._look()
            job = self._done(in_order)
            if job is not None:
                return self._take_out(job)
            now = time.monotonic()
            if self._options.timeout and now - start >= self._options.timeout:
                raise RuntimeError(
                    f"DataLoader timed out after {self._options.timeout} seconds. "
                    + self._worker_report(now)
                )
            if now >= warn_at:
                warn_at = float("inf")
                warnings.warn(
                    f"FusionLoader: no batch for {now - start:.0f} s. {self._worker_report(now)}",
                    stacklevel=7,
                )
            self._sleep(seen)

    def take_done(self, in_order: bool) -> Job | None:
        """Returns what ``next_done`` would if it is there already, without waiting."""
        self._receive()
        job = self._done(in_order)
        return None if job is None else self._take_out(job)

    def _take_out(self, job: Job) -> Job:
        if self.gpu is not None:
            tiny_batches = -(-len(job.batch.items) // self._options.tiny_batch_size)
            self.gpu.finished(job.descriptor.number, tiny_batches)
        self.outstanding.remove(job)
        self._advance()
        if self.gpu is not None:
            self.memory.give_buffers(self.outstanding)
        return job

    def _sleep(self, seen: int) -> None:
        seconds = _SLEEP_SECONDS
        if self._options.timeout:
            seconds = min(seconds, self._options.timeout / 4)
        if self.gpu is not None:
            self.gpu.waits()
            if self.gpu.waits_for_device:
                seconds = min(seconds, _DEVICE_SECONDS)
        if self.pool_binding is not None:
            self.pool_binding.drain_others()
        assert self._workers is not None
        receiver = self._workers.unfinished_message()
        if receiver is not None:
            receiver.wait(seconds)
        else:
            self.queue.sleep(seen, seconds)

    def _done(self, in_order: bool) -> Job | None:
        job = self.in_flight.done(in_order)
        if job is not None:
            # What workers sent about it was sent before; it may have come since the last look.
            self._receive()
        return job

    def _look(self) -> None:
        self._receive()
        assert self._workers is not None
        for death in self._workers.deaths():
            for message in death.last_words:
                self._handle(message)
            lost = self.queue.take_back(death.number)
            if not death.is_accident:
                self._workers.restart(death)
                continue
            for one in lost:
                self._count_death(one.sequence, one.tiny_batch, death.pid, death.manner)
            announced = self.queue.worker(death.number).pid == death.pid
            self._workers.replace(death, fruitful=bool(lost) or announced or death.at_work)
        if self.gpu is not None:
            self.gpu.look()
        if self._borrowed_workers is not None:
            for held in self._borrowed_workers.look():
                self._count_death(held.sequence, held.tiny_batch, held.pid, "of another rank died")
        for job in [job for job in self.outstanding if job.discarded]:
            if self.queue.status(job.descriptor.number).active == 0:
                self.outstanding.remove(job)
                self.memory.release(job)
                self._advance()

    def _advance(self) -> None:
        self.queue.deliver_until(
            min((job.sequence for job in self.outstanding), default=self._sequence)
        )

    def _receive(self) -> None:
        assert self._workers is not None
        for message in self._workers.receive():
            self._handle(message)

    def _handle(self, message: messages.Message) -> None:
        if isinstance(message, messages.WorkerFailed):
            from fusionloader.workers.failures import raise_failure

            raise_failure(message.failure)
        if isinstance(message, messages.DatasetChanged):
            raise PlanOutdated
        if isinstance(message, messages.LayoutFound):
            self._settle_layout(message.layout)
            return
        job = job_of(self.outstanding, message.sequence)
        if job is None:
            return
        if isinstance(message, messages.TinyBatchFailed):
            job.failures.append(message.failure)
        elif isinstance(message, messages.SampleSkipped):
            # A tiny-batch that is done again tells again.
            job.skipped = [skip for skip in job.skipped if skip.row != message.row]
            job.skipped.append(message)
        else:
            job.spilled[message.tiny_batch] = message.samples

    def _settle_layout(self, layout: Layout | str) -> None:
        if self.memory.layout is not None:
            return
        if not isinstance(layout, Layout):
            raise NoFixedLayout(str(layout))
        self.memory.settle(layout, self.outstanding)

    def _count_death(self, sequence: int, tiny_batch: int, pid: int | None, manner: str) -> None:
        job = job_of(self.outstanding, sequence)
        if job is None:
            return
        job.deaths[tiny_batch] = job.deaths.get(tiny_batch, 0) + 1
        if job.deaths[tiny_batch] < _MOST_DEATHS:
            return
        size = self._options.tiny_batch_size
        rows = job.batch.rows[tiny_batch * size : (tiny_batch + 1) * size]
        named = ", ".join(self._options.name(job.batch.indices[row]) for row in rows)
        text = (
            f"DataLoader worker (pid {pid}) {manner}. {_MOST_DEATHS} workers died on the same "
            f"samples; one of these is the cause: {named}"
        )
        failure = messages.Failure(pickle.dumps(RuntimeError), text, rows[0])
        job.failures.append(failure)
        self.queue.give_up(job.descriptor.number, tiny_batch)

    def _worker_report(self, now: float) -> str:
        missing = range(self._count, self._most)
        workers = [(n, worker) for n, worker in enumerate(self.queue.workers()) if n not in missing]
        elsewhere = (
            () if self.pool_binding is None else self.pool_binding.elsewhere(range(self._count))
        )
        return worker_report(
            workers, self.outstanding, self._options.name, now, self._first_guest_slot, elsewhere
        )

    # ---- ending --------------------------------------------------------------------------------

    def discard(self) -> None:
        """Drops every mini-batch in flight; samples that workers are at are still finished."""
        self.queue.withdraw()
        for job in self.outstanding:
            job.discarded = True

    @property
    def restarts(self) -> int:
        """Workers that were replaced."""
        return self._workers.restarts if self._workers is not None else 0

    @property
    def borrowed_samples(self) -> int:
        """Samples that workers of other ranks have made."""
        return 0 if self._borrowed_workers is None else self._borrowed_workers.samples

    @property
    def processes(self) -> list[Any]:
        """The worker processes."""
        cpu = [w.process for w in self._workers.workers] if self._workers is not None else []
        return cpu + (self.gpu.processes if self.gpu is not None else [])

    def close(self) -> None:
        """Ends the workers and gives the memory back; delivered batches stay valid."""
        if self.closed or os.getpid() != self._pid:
            return  # in a forked child the workers are its parent's
        self.closed = True
        self.queue.stop()
        if self.membership is not None:
            self.membership.close()
        if self.pool_binding is not None:
            self.pool_binding.close()
        if self._workers is not None:
            self._workers.end()
        if self.gpu is not None:
            self.gpu.end()
        self.cores.close()
        self.outstanding.clear()
        self.arena.close()
        os.close(self.control_fd)

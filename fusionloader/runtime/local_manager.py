"""The local manager: mini-batches in flight, from publication to delivery.

It runs inside ``__next__``: there is nothing to decide while nobody asks for a batch, since several
mini-batches are published ahead and workers need no manager to claim from them.
"""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fusionloader import _native
from fusionloader.executors.layout import Layout
from fusionloader.runtime import messages, stalls
from fusionloader.runtime.device_ring import DeviceBuffer, DeviceRing
from fusionloader.runtime.gpu_control import Connections, GpuControl, GpuOptions
from fusionloader.runtime.membership import SEATS, Lending, Membership
from fusionloader.runtime.processes import Process
from fusionloader.runtime.worker_set import WorkerSet
from fusionloader.shm import objects
from fusionloader.shm.slots import Arena, PageLocking, Slot, SlotPool

log = logging.getLogger("fusionloader.manager")

_SLEEP_SECONDS = 0.1
_DEVICE_SECONDS = 0.0005
_MOST_DEATHS = 3


class PlanOutdated(Exception):
    """``worker_init_fn`` changed the dataset that the plan was made of."""


class NoFixedLayout(Exception):
    """Samples cannot be written row by row; the message says why."""


@dataclass(frozen=True, slots=True)
class MiniBatch:
    """A mini-batch as it is published.

    ``indices`` are what the batch sampler gave. ``items`` (numbers for the worker), ``keys`` and
    ``occurrences`` (for random draws) have an entry per index; ``rows`` gives the places in the
    batch in the order in which tiny-batches are cut. ``pickled`` are the indices where a number
    does not say everything.
    """

    indices: Sequence[Any]
    items: list[int]
    keys: list[int]
    occurrences: list[int]
    rows: list[int]
    seed: int
    epoch: int
    pickled: bytes = b""


@dataclass(slots=True, eq=False)
class Job:
    """A published mini-batch and what has become known about it."""

    batch: MiniBatch
    number: int
    sequence: int
    descriptor: Slot
    payload: Slot | None
    failures: list[messages.Failure] = field(default_factory=list)
    skipped: list[messages.SampleSkipped] = field(default_factory=list)
    spilled: dict[int, bytes] = field(default_factory=dict)
    deaths: dict[int, int] = field(default_factory=dict)
    discarded: bool = False
    device: DeviceBuffer | None = None


@dataclass(frozen=True, slots=True)
class ManagerOptions:
    """What the manager needs to know of the loader.

    ``tiny_batch_size`` in samples, ``in_flight`` in mini-batches, ``timeout`` in seconds (0: none).
    There may be up to ``most_workers`` later, if that is more than ``workers``.
    ``name`` returns a sample's name for messages from its index. ``page_locking`` where
    batches are copied to a device. ``group_size`` neighbours in a batch share the draws of
    augmentations (0: each sample has its own). ``gpu`` where there is a GPU worker; it writes into
    buffers of ``ring``, laid out for ``batch_size`` rows, or where there is none into the slots, as
    the others do. ``lending`` where workers come from other ranks and go there.
    """

    workers: int
    in_flight: int
    tiny_batch_size: int
    timeout: float
    name: Callable[[Any], str]
    page_locking: PageLocking | None = None
    group_size: int = 0
    gpu: GpuOptions | None = None
    ring: DeviceRing | None = None
    batch_size: int = 0
    most_workers: int = 0
    lending: Lending | None = None


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
        self.layout = layout
        self.outstanding: list[Job] = []
        objects.sweep()
        self._count = options.workers
        self._in_flight = options.in_flight
        self._most = max(options.workers, options.most_workers)
        ring = options.in_flight * self._most // max(options.workers, 1) * 2 + 2
        workers = self._most + (options.gpu is not None)
        self.membership: Membership | None = None
        seats, lendable, event_fd = 0, 0, -1
        if options.lending is not None:
            self.membership = Membership(options.lending)
            seats, lendable, event_fd = SEATS, self._most, self.membership.event_fd
        self._first_seat = workers
        self._guests_checked = 0.0
        self.control_fd = objects.create(_native.ManagerQueue.control_bytes(workers + seats, ring))
        self.arena = Arena()
        self.queue = _native.ManagerQueue(
            self.control_fd, self.arena.fd, workers, ring, seats, lendable, event_fd
        )
        self._ring = ring
        self._descriptors = SlotPool(self.arena, self.queue, spare=ring)
        self.payloads = SlotPool(
            self.arena, self.queue, options.in_flight + 2, options.page_locking
        )
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
                self._announce(layout)
            if options.gpu is not None:  # first: it has the most to build
                self.gpu = GpuControl(
                    self.queue,
                    self._connections(),
                    self._most,
                    options.workers,
                    options.in_flight,
                    options.gpu,
                )
            self._workers = WorkerSet(options.workers, launch)
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
        self._in_flight = max(self._options.in_flight * wanted // self._options.workers, 1)
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
        return self._in_flight - sum(not job.discarded for job in self.outstanding)

    def submit(self, batch: MiniBatch, number: int) -> Job:
        """Publishes a mini-batch; ``number`` is the caller's."""
        while len(self.outstanding) >= self._ring:  # discarded ones that a worker still holds
            self._look()
            if len(self.outstanding) >= self._ring:
                self.queue.sleep(self.queue.done_word(), _SLEEP_SECONDS)
        samples, size = len(batch.items), self._options.tiny_batch_size
        room = _native.ManagerQueue.descriptor_bytes(samples, -(-samples // size))
        descriptor = self._descriptors.acquire(room + len(batch.pickled))
        job = Job(batch, number, self._sequence, descriptor, None)
        if self.layout is not None:
            job.payload = self._acquire_payload(self.layout, samples)
        self.queue.describe(
            descriptor.number,
            job.sequence,
            batch.rows,
            batch.items,
            batch.keys,
            batch.occurrences,
            size,
            batch.seed,
            batch.epoch,
            number,
            self._options.group_size,
            job.payload.number + 1 if job.payload else 0,
            samples,
            batch.pickled,
        )
        self.outstanding.append(job)
        self._sequence += 1
        if self.gpu is not None and self._options.ring is None:
            self.queue.set_gpu_rows(descriptor.number, 1)
        self.queue.publish(descriptor.number, job.sequence)
        self._give_buffers()
        return job

    def _connections(self) -> Connections:
        ring, buffers = self._options.ring, []
        if ring is not None:
            assert self.layout is not None and self._options.gpu is not None
            nbytes = self.layout.batch_bytes(self._options.batch_size)
            buffers = ring.share(self._options.gpu.buffers, nbytes)
        return Connections(self.control_fd, self.arena.fd, buffers)

    def _give_buffers(self) -> None:
        """Lets the GPU worker write into the oldest mini-batches, as far as buffers go."""
        ring = self._options.ring
        if self.gpu is None or ring is None:
            return
        assert self.layout is not None
        for job in self.outstanding:
            if job.device is None and not job.discarded:
                job.device = ring.acquire_shared(self.layout.batch_bytes(len(job.batch.items)))
                if job.device is None:
                    return
                self.queue.set_gpu_rows(job.descriptor.number, job.device.number + 1)

    def _acquire_payload(self, layout: Layout, rows: int) -> Slot:
        nbytes = layout.batch_bytes(rows)
        if self.payloads.peak_bytes == 0:
            count = self._options.in_flight + 1
            what = f"{count} batches of {rows} samples in flight"
            objects.check_room(nbytes * count, what)
        return self.payloads.acquire(max(nbytes, 1))

    def _announce(self, layout: Layout) -> None:
        pickled = pickle.dumps(layout)
        self.queue.announce_layout(self._descriptors.acquire(len(pickled)).number, pickled)

    # ---- waiting -------------------------------------------------------------------------------

    def next_done(self, in_order: bool) -> Job:
        """Waits for the oldest mini-batch, or with ``in_order=False`` for any, and takes it out.

        Raises:
            NoFixedLayout: samples cannot be written row by row.
            PlanOutdated: workers have another dataset than the plan.
            RuntimeError: after ``timeout`` seconds, or when workers cannot be started.
        """
        start = time.monotonic()
        warn_at = start + stalls.WARN_SECONDS
        while True:
            seen = self.queue.done_word()
            self._look()
            job = self._done(in_order)
            if job is not None:
                return self._take_out(job)
            now = time.monotonic()
            if self._options.timeout and now - start >= self._options.timeout:
                raise RuntimeError(
                    f"DataLoader timed out after {self._options.timeout} seconds. "
                    + self._whereabouts(now)
                )
            if now >= warn_at:
                warn_at = float("inf")
                warnings.warn(
                    f"FusionLoader: no batch for {now - start:.0f} s. {self._whereabouts(now)}",
                    stacklevel=6,
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
        self._give_buffers()
        return job

    def _sleep(self, seen: int) -> None:
        seconds = _SLEEP_SECONDS
        if self._options.timeout:
            seconds = min(seconds, self._options.timeout / 4)
        if self.gpu is not None:
            self.gpu.waits()
            if self.gpu.waits_for_device:
                seconds = min(seconds, _DEVICE_SECONDS)
        assert self._workers is not None
        receiver = self._workers.unfinished_message()
        if receiver is not None:
            receiver.wait(seconds)
        else:
            self.queue.sleep(seen, seconds)

    def _done(self, in_order: bool) -> Job | None:
        for job in self.outstanding:
            if job.discarded:
                continue
            waiting, active, _, _, _ = self.queue.status(job.descriptor.number)
            if waiting == active == 0:
                # What workers sent about it was sent before; it may have come since the last look.
                self._receive()
                return job
            if in_order:
                return None
        return None

    def _look(self) -> None:
        self._receive()
        assert self._workers is not None
        for death in self._workers.deaths():
            for message in death.last_words:
                self._handle(message)
            lost = self.queue.take_back(death.number)
            for sequence, tiny_batch in lost:
                self._count_death(sequence, tiny_batch, death.pid, death.manner)
            announced = self.queue.records()[death.number][0] == death.pid
            self._workers.replace(death, fruitful=bool(lost) or announced)
        if self.gpu is not None:
            self.gpu.look()
        if self.membership is not None:
            self._look_at_guests(self.membership)
        for job in [job for job in self.outstanding if job.discarded]:
            if self.queue.status(job.descriptor.number)[1] == 0:
                self.outstanding.remove(job)
                self.release(job)
                self._advance()

    def _look_at_guests(self, membership: Membership) -> None:
        """Takes back what lent workers held that have died, at most every 0.1 s."""
        membership.look()
        now = time.monotonic()
        if now - self._guests_checked < _SLEEP_SECONDS:
            return
        self._guests_checked = now
        for seat in self.queue.dead_guests():
            pid = self.queue.records()[seat][0]
            for sequence, tiny_batch in self.queue.take_back(seat):
                self._count_death(sequence, tiny_batch, pid, "of another rank died")
            self.queue.empty_seat(seat)

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
            from fusionloader.runtime.failures import raise_failure

            raise_failure(message.failure)
        if isinstance(message, messages.DatasetChanged):
            raise PlanOutdated
        if isinstance(message, messages.LayoutFound):
            self._settle_layout(message.layout)
            return
        job = next((j for j in self.outstanding if j.sequence == message.sequence), None)
        if job is None:
            return
        if isinstance(message, messages.TinyBatchFailed):
            job.failures.append(message.failure)
        elif isinstance(message, messages.SampleSkipped):
            job.skipped.append(message)
        else:
            job.spilled[message.tiny_batch] = message.samples

    def _settle_layout(self, layout: Layout | str) -> None:
        if self.layout is not None:
            return
        if not isinstance(layout, Layout):
            raise NoFixedLayout(str(layout))
        self.layout = layout
        for job in self.outstanding:
            job.payload = self._acquire_payload(layout, len(job.batch.items))
            rows = len(job.batch.items)
            self.queue.set_payload(job.descriptor.number, job.payload.number + 1, rows)
        self._announce(layout)

    def _count_death(self, sequence: int, tiny_batch: int, pid: int | None, manner: str) -> None:
        job = next((j for j in self.outstanding if j.sequence == sequence), None)
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

    def _whereabouts(self, now: float) -> str:
        places = []
        for number, record in enumerate(self.queue.records()):
            if self._count <= number < self._most:
                continue
            pid, sequence, _, position, since = record[:5]
            job = next((j for j in self.outstanding if j.sequence == sequence - 1), None)
            if job is None and number >= self._first_seat:
                continue
            if job is None or position >= len(job.batch.rows):
                places.append(f"worker {number} (pid {pid}) is idle")
                continue
            index = job.batch.indices[job.batch.rows[position]]
            name = self._options.name(index)
            places.append(f"worker {number} (pid {pid}) at {name} for {now - since:.1f} s")
        return "; ".join(places)

    # ---- ending --------------------------------------------------------------------------------

    def release(self, job: Job) -> None:
        """Takes the slots of a mini-batch back; its payload only if it was not delivered."""
        self._descriptors.release(job.descriptor)
        if job.payload is not None:
            self.payloads.release(job.payload)
        if job.device is not None and self._options.ring is not None:
            self._options.ring.release(job.device)

    def deliver(self, job: Job) -> Any:
        """Returns an owner of the mini-batch's rows; the slot is free again when it is gone."""
        assert job.payload is not None
        self._descriptors.release(job.descriptor)
        return self.payloads.lease(job.payload)

    def discard(self) -> None:
        """Drops every mini-batch in flight; samples that workers are at are still finished."""
        self.queue.withdraw()
        for job in self.outstanding:
            job.discarded = True

    @property
    def pending(self) -> bool:
        """Whether a mini-batch is in flight that somebody waits for."""
        return any(not job.discarded for job in self.outstanding)

    @property
    def backlog(self) -> int:
        """Samples of mini-batches in flight that are complete, roughly: whole tiny-batches."""
        completed = sum(
            self.queue.status(job.descriptor.number)[2]
            for job in self.outstanding
            if not job.discarded
        )
        return completed * self._options.tiny_batch_size

    @property
    def ready(self) -> int:
        """Mini-batches that could be delivered now, in order."""
        jobs = [job for job in self.outstanding if not job.discarded]
        done = (self.queue.status(job.descriptor.number)[:2] == (0, 0) for job in jobs)
        return sum(1 for _ in itertools.takewhile(bool, done))

    @property
    def restarts(self) -> int:
        """Workers that were replaced."""
        return self._workers.restarts if self._workers is not None else 0

    @property
    def borrowed_samples(self) -> int:
        """Samples that workers of other ranks have made."""
        return sum(record[5] for record in self.queue.records()[self._first_seat :])

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
        if self._workers is not None:
            self._workers.end()
        if self.gpu is not None:
            self.gpu.end()
        self.outstanding.clear()
        self.arena.close()
        os.close(self.control_fd)

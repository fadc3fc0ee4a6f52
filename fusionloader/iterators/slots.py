"""The iterator over mini-batches that workers write into shared slots, sample by sample."""

from __future__ import annotations

import itertools
import logging
import os
import pickle
import time
import weakref
from collections import deque
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_map
from torch.utils.data.dataloader import _BaseDataLoaderIter

from fusionloader.delivery.device_batches import Arriving, make_delivery, to_device
from fusionloader.delivery.page_locking import CudaPageLocking
from fusionloader.executors.layout import Layout
from fusionloader.gpu.idle_window import IdleWindow
from fusionloader.iterators.backend import WorkerBackend, refuse_pool
from fusionloader.iterators.collation import collate_named
from fusionloader.iterators.whole_batches import ContinuedIterator
from fusionloader.manager.local_manager import LocalManager, NoFixedLayout, PlanOutdated
from fusionloader.manager.mini_batches import Job, MiniBatch
from fusionloader.manager.options import ManagerOptions
from fusionloader.pool.pool_processes import running
from fusionloader.resume.epochs import Epochs, detached
from fusionloader.workers.failures import raise_failure

log = logging.getLogger("fusionloader.loader")
_MOST_WORKERS = 32  # room for as many is kept, or for the machine's, to be added later
_AHEAD = 2  # batches that are on their way to the device, beside the one in use
_FEWEST = 2  # published for each that is taken out, so that there are soon as many as there may be


class SlotIterator(_BaseDataLoaderIter):
    """Serves map-style datasets with the default collate, and compiled plans."""

    def __init__(self, loader: Any, epochs: Epochs, backend: WorkerBackend) -> None:
        """``backend`` says how samples are made and where the workers come from."""
        super().__init__(loader)
        self._base_seed = epochs.base_seed(int(self._base_seed))
        self._loader = detached(loader)
        self._epochs = epochs
        self._backend = backend
        self._in_order = loader.in_order
        self._whole: ContinuedIterator | None = None
        self._delivery = make_delivery(loader.device)
        self._arriving: deque[tuple[Job, Arriving | None]] = deque()
        self._start_manager(loader)
        self._begin()
        epochs.idle_window = weakref.WeakMethod(self.idle_window)

    def idle_window(self) -> AbstractContextManager[Any]:
        """Returns a block within which training asks for no batch and leaves the device alone."""
        gpu = self._manager.gpu
        if gpu is None or self._manager.closed or not gpu.is_temporal:
            return nullcontext()
        return IdleWindow(gpu, self._manager.queue)

    def _start_manager(self, loader: Any) -> None:
        self._workers_wanted = loader.num_workers
        start = self._backend.starter(loader, self.base_seed)
        self._manager = LocalManager(self._options(loader), self._backend.layout, start)
        self._finalizer = weakref.finalize(self, self._manager.close)

    def _options(self, loader: Any) -> ManagerOptions:
        pool = None if loader.pool is None else running(loader.pool)
        page_locked = self._pin_memory or self._delivery is not None
        return ManagerOptions(
            workers=loader.num_workers,
            in_flight=max(loader.prefetch_factor * loader.num_workers, 1),
            tiny_batch_size=loader.tiny_batch_size,
            timeout=loader.timeout,
            name=self._backend.name,
            group_size=loader.tiny_batch_size if loader.augment_per == "tiny_batch" else 0,
            page_locking=CudaPageLocking() if page_locked else None,
            gpu=self._backend.gpu,
            ring=self._delivery.ring if self._delivery is not None else None,
            batch_size=loader.batch_size or 0,
            sharing_offer=self._backend.sharing_offer,
            most_workers=0 if pool is not None else max(_MOST_WORKERS, os.cpu_count() or 1),
            pool=pool,
            cpu_affinity=loader.cpu_affinity if self._backend.single_threaded else "off",
        )

    @property
    def base_seed(self) -> int:
        """What torch's ``DataLoader`` would have seeded its workers from."""
        return int(self._base_seed)

    # ---- an epoch ------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._epoch_state = self._epochs.start(self._loader, self.base_seed)
        self._batches = self._epochs.not_delivered(
            self._loader, self._epoch_state, iter(self._index_sampler), self._backend.count
        )
        # Numbers, indices, keys and occurrences of mini-batches that are not yet published.
        self._drawn: deque[tuple[int, list[Any], list[int], list[int]]] = deque()
        self._fill()

    def _fill(self) -> None:
        """Publishes what there is room for, but lets nobody wait for that who need not wait.

        To make room for a mini-batch is what takes long at the start of an epoch. The sampler is
        always asked for all of them, so that how far it is ahead does not depend on speed.
        """
        wanted = self._manager.room - len(self._drawn)
        fresh = itertools.islice(self._batches, max(wanted, 0))
        for published in itertools.count(1):
            if not self._drawn:
                self._drawn.extend(itertools.islice(fresh, 1))
            if not self._drawn or self._manager.room <= 0:
                break
            self._submit(*self._drawn.popleft())
            if published >= _FEWEST and self._manager.in_flight.done(self._in_order):
                break
        self._drawn.extend(fresh)

    def _submit(self, number: int, indices: Any, keys: list[int], counts: list[int]) -> None:
        items, rows, pickled = self._backend.describe(indices)
        seed, epoch = self._epoch_state.seed, self._epoch_state.epoch
        batch = MiniBatch(indices, items, keys, counts, rows, seed, epoch, pickled)
        self._manager.submit(batch, number)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._loader = detached(loader)
        if self._whole is not None:
            self._whole._reset(loader, first_iter)
        else:
            self._discard()
            if self._manager.pool_binding is not None and self._manager.pool_binding.pool_is_closed:
                self._shutdown_workers()
                self._start_manager(loader)
            self._begin()
        self._num_yielded = 0

    def _discard(self) -> None:
        self._manager.discard()
        while self._arriving:
            _, arriving = self._arriving.popleft()
            if arriving is not None and self._delivery is not None:
                self._delivery.finish(arriving)

    # ---- a batch -------------------------------------------------------------------------------

    def _next_data(self) -> Any:
        if self._whole is not None:
            return next(self._whole)
        if self._num_yielded == 0 and self._epochs.changed(self._loader):
            self._epochs.restart()
            self._discard()
            self._begin()
        if self._epochs.workers not in (None, self._workers_wanted):
            self._workers_wanted = self._epochs.workers
            self._manager.resize(self._workers_wanted)
            self._fill()
        while self._manager.in_flight.pending or self._arriving:
            start = time.perf_counter()
            try:
                job, arriving = self._next_job()
            except NoFixedLayout as why:
                return self._go_whole(str(why))
            except PlanOutdated:
                self._go_python()
                continue
            self._epochs.counters.wait_seconds += time.perf_counter() - start
            self._fill()
            found, batch = self._batch(job, arriving)
            if found:
                return batch
        self._epochs.finish(self._epoch_state)
        self._backend.epoch_ended()
        if self._manager.gpu is not None:
            self._manager.gpu.paused()
        if not self._persistent_workers:
            self._shutdown_workers()
        raise StopIteration

    def _next_job(self) -> tuple[Job, Arriving | None]:
        """Returns the next mini-batch; batches behind it that are done set off to the device."""
        if self._delivery is not None:
            while len(self._arriving) < _AHEAD and (
                done := self._manager.take_done(self._in_order)
            ):
                self._arriving.append((done, self._set_off(done)))
            if self._arriving:
                return self._arriving.popleft()
        job = self._manager.next_done(self._in_order)
        return job, self._set_off(job)

    def _set_off(self, job: Job) -> Arriving | None:
        if self._delivery is None or job.failures or job.spilled or not job.batch.indices:
            return None
        layout, rows = self._manager.memory.layout, job.batch.rows
        assert layout is not None
        buffer, there = job.device, []
        if buffer is not None and self._manager.gpu is not None:
            size = self._loader.tiny_batch_size
            there = self._manager.gpu.rows_done(job.descriptor.number, size, rows)
            job.device = None
        owner = self._manager.memory.deliver(job)
        return self._delivery.begin(layout, owner, buffer, len(rows), there)

    def _batch(self, job: Job, arriving: Arriving | None) -> tuple[bool, Any]:
        self._epoch_state.deliver(job.number)
        self._epochs.note_skipped(job.skipped)
        if job.failures:
            self._manager.memory.release(job)
            raise_failure(min(job.failures, key=lambda failure: failure.position))
        count = len(job.batch.indices)
        if count == 0:
            self._manager.memory.release(job)
            collate_named([], self._backend.name)  # raises, as it does for DataLoader
        layout = self._manager.memory.layout
        assert layout is not None
        dropped = {skip.row for skip in job.skipped if skip.replaced_by is None}
        self._epochs.counters.samples += count - len(dropped)
        self._epochs.counters.batches += 1
        if self._manager.gpu is not None:
            ready = self._manager.in_flight.ready + len(self._arriving)
            backlog = self._manager.in_flight.completed * self._loader.tiny_batch_size
            self._manager.gpu.delivered(count, backlog, ready)
            self._epochs.counters.gpu_worker = self._manager.gpu.stats()
        if arriving is not None:
            assert self._delivery is not None
            return len(dropped) < count, _without(self._delivery.finish(arriving), count, dropped)
        if len(dropped) == count:
            self._manager.memory.release(job)
            return False, None
        if job.spilled or dropped:
            return True, self._collate(job, layout, dropped)
        return True, layout.batch(self._manager.memory.deliver(job), count, count)

    def __next__(self) -> Any:
        gpu = self._manager.gpu
        if gpu is not None:
            gpu.asked()
        batch = super().__next__()
        device = self._loader.device
        return batch if device is None else to_device(batch, torch.device(device))

    def _collate(self, job: Job, layout: Layout, dropped: set[int]) -> Any:
        """Puts a mini-batch together that is not whole in its slot."""
        count = len(job.batch.indices)
        owner = self._manager.memory.deliver(job)
        samples: list[Any] = list(layout.samples(owner, count, range(count)))
        size = self._loader.tiny_batch_size
        for tiny_batch, pickled in job.spilled.items():
            spilled = pickle.loads(pickled)
            samples[tiny_batch * size : tiny_batch * size + len(spilled)] = spilled
        kept = [row for row in range(count) if row not in dropped]
        indices = job.batch.indices
        return collate_named(
            [samples[row] for row in kept], lambda place: self._backend.name(indices[kept[place]])
        )

    def _go_whole(self, why: str) -> Any:
        """Starts again with whole batches per worker, as torch does; nothing was delivered yet."""
        self._backend.no_layout(why)
        refuse_pool(self._loader, why)
        jobs = self._manager.outstanding
        pending = [(job.number, list(job.batch.indices)) for job in jobs if not job.discarded]
        self._shutdown_workers()
        batches = itertools.chain(self._drawn, self._batches)
        later = ((number, indices) for number, indices, _, _ in batches)
        remaining = itertools.chain(pending, later)
        self._whole = ContinuedIterator(
            self._loader, self._epochs, self._epoch_state, remaining, self.base_seed
        )
        return next(self._whole)

    def _go_python(self) -> None:
        """Has workers make the samples that read the dataset as ``worker_init_fn`` left it."""
        failed = [job for job, arriving in self._arriving if arriving is None]
        self._arriving = deque(entry for entry in self._arriving if entry[1] is not None)
        jobs = [*failed, *(job for job in self._manager.outstanding if not job.discarded)]
        self._backend = self._backend.of_workers_dataset()
        self._shutdown_workers()
        self._start_manager(self._loader)
        for job in jobs:
            batch = job.batch
            self._submit(job.number, batch.indices, batch.keys, batch.occurrences)

    # ---- the end -------------------------------------------------------------------------------

    def _shutdown_workers(self) -> None:
        self._epochs.gather(self._manager)
        self._finalizer()
        if self._whole is not None:
            self._whole._shutdown_workers()

    @property
    def _workers(self) -> list[Any]:
        return self._manager.processes if self._whole is None else self._whole._workers


def _without(batch: Any, count: int, dropped: set[int]) -> Any:
    """Returns a batch without some of its rows."""
    if not dropped:
        return batch
    kept = [row for row in range(count) if row not in dropped]
    return tree_map(lambda leaf: leaf[kept], batch)

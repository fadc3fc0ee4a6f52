"""Whole batches in shared memory that outlive their iterator."""

import contextlib
import gc
import os
import signal
from functools import partial
from pathlib import Path

import pytest
import torch
from support.raised_at import CALLS, Steps
from torch.utils.data import Dataset, default_collate

from fusionloader import FusionLoader
from fusionloader.system.shm.batch_slots import BatchSlots, WorkersSlots, identify_object
from fusionloader.system.shm.forks import Fork


class Ones(Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        return torch.ones(4096)


def collated(samples):
    return {"ones": default_collate(samples)}


def test_a_batch_outlives_an_iterator_that_the_garbage_collector_ends():
    iterator = iter(FusionLoader(Ones(), 4, num_workers=1, collate_fn=collated))
    batch = next(iterator)
    iterator.itself = iterator  # as a traceback may refer to it, and it to the traceback
    del iterator
    gc.collect()
    assert torch.equal(batch["ones"], torch.ones(4, 4096))


class Makers(Ones):
    """Also tells which process made a sample."""

    def __len__(self):
        return 4 * 60

    def __getitem__(self, index):
        return torch.full((4096,), index), os.getpid()


def makers(samples):
    rows, pids = default_collate(samples)
    return rows, set(pids.tolist())


def memory_of_batches():
    """Returns the number and the bytes of this process's objects for batches."""
    fds = [fd for fd in list(Path("/proc/self/fd").iterdir()) if fd.exists()]
    files = [fd for fd in fds if "batch" in os.readlink(fd)]
    return len(files), sum(os.stat(file).st_blocks * 512 for file in files)


def test_workers_that_die_leave_no_memory_and_no_descriptor():
    before, _ = memory_of_batches()
    found = []
    loader = FusionLoader(Makers(), 4, num_workers=1, collate_fn=makers)
    for number, (rows, pids) in enumerate(loader):
        assert rows[:, 0].tolist() == list(range(4 * number, 4 * number + 4))
        if number % 10 == 5:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
        found.append(memory_of_batches())
    del rows, pids
    assert {count - before for count, _ in found} == {1}
    assert max(nbytes for _, nbytes in found) <= 2 * 6 * (192 << 10)  # two workers' slots
    assert loader.stats().worker_restarts == 6


def leased(slots, *where):
    owner = slots.view(*where)
    slots.lease(owner)
    return owner


class OneWorker:
    """Slots of a worker, whose first batch was dropped here and seen by a child that has ended."""

    def __init__(self):
        self.training = WorkersSlots()
        fd = self.training.add_worker(0)
        self.memory = identify_object(fd)
        self.worker = BatchSlots(fd, 4)
        batch = self.lease(self.sent())
        (held,) = self.training._mapped.values()
        fork = Fork()
        fork.close_write()
        held.forks.append(fork)
        del batch

    def sent(self):
        slot = self.worker.acquire(1)
        slot.set_free(False)
        return slot

    def lease(self, slot):
        return leased(self.training, self.memory, slot.offset, slot.size, self.worker.offsets)


def test_an_exception_where_a_forked_childs_batches_are_freed_frees_no_later_batch():
    steps = Steps("system/shm/batch_slots.py", events=(*CALLS, "c_return"))
    slots = OneWorker()
    count = steps.count(partial(slots.lease, slots.sent()))
    for position in range(count):
        slots = OneWorker()
        with contextlib.suppress(KeyboardInterrupt):
            steps.raise_at(position, KeyboardInterrupt(), partial(slots.lease, slots.sent()))
        sent = [slots.sent(), slots.sent()]
        batches = [slots.lease(slot) for slot in sent]
        assert slots.worker.acquire(1) not in sent, steps.place
        del batches


def test_a_worker_gives_slots_up_that_forked_children_see_and_their_memory_is_returned():
    training = WorkersSlots()
    fd = training.add_worker(0)
    memory, worker, fork = identify_object(fd), BatchSlots(fd, 4), Fork()

    def sent():
        slot = worker.acquire(1 << 20)
        if slot is not None:
            slot.set_free(False)
        return slot

    slots = [sent() for _ in range(4)]
    batches = [leased(training, memory, slot.offset, slot.size, worker.offsets) for slot in slots]
    assert sent() is None
    for slot in training.held():
        slot.forks.append(fork)
    del slot
    batches.clear()
    training.collect()
    others = [sent() for _ in range(4)]
    assert not {slot.offset for slot in slots} & {slot.offset for slot in others}
    training.collect()
    used = os.fstat(fd).st_blocks
    assert used * 512 >= 8 << 20
    fork.close_write()
    training.collect()
    assert os.fstat(fd).st_blocks * 512 <= 5 << 20
    for slot in others:  # those that it has now are used again
        batches.append(leased(training, memory, slot.offset, slot.size, worker.offsets))
    batches.clear()
    training.collect()
    assert sent().offset in {slot.offset for slot in others}
    assert training.count == 4


def test_slots_that_children_saw_are_returned_if_their_worker_has_ended():
    training = WorkersSlots()
    fd = training.add_worker(0)
    worker, fork = BatchSlots(fd, 4), Fork()
    slot = worker.acquire(1 << 20)
    slot.set_free(False)
    batch = leased(training, identify_object(fd), slot.offset, slot.size, worker.offsets)
    (held,) = training.held()
    held.forks.append(fork)
    del batch
    training.collect()
    assert training.add_worker(0) == fd  # of the next worker
    fork.close_write()
    training.collect()
    training.collect()
    assert os.fstat(fd).st_blocks == 0


@pytest.mark.parametrize("seen", [False, True])
def test_batches_outlive_their_iterator_in_whichever_order_they_were_taken(seen):
    training = WorkersSlots()
    fd = training.add_worker(0)
    worker = BatchSlots(fd, 4)
    sent = []
    for fill in b"12":
        slot = worker.acquire(8)
        slot.view()[:8] = bytes([fill] * 8)
        slot.set_free(False)
        sent.append((identify_object(fd), slot.offset, slot.size, worker.offsets))
    later = leased(training, *sent[1])
    (held,) = training.held()
    fork = Fork()
    if seen:  # a child looks at the batch, which is dropped here
        held.forks.append(fork)
        del later
    earlier = leased(training, *sent[0])
    del training
    gc.collect()
    assert earlier[:8] == b"1" * 8
    assert bytes(held.view()[:8]) == b"2" * 8
    fork.close_write()
    fork.close()

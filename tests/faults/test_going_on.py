"""What training gets after an error of ``next()`` that it has caught: all that is left."""

import contextlib
import ctypes
import gc
import os
import resource
import select
import signal
import time

import pytest
import torch
from support import warm_start
from support.batches import same_batches
from support.limits import limited
from support.torchrun import environment
from support.waiting import PATIENCE, Flag, wait_until
from torch.utils.data import Dataset

from fusionloader import FusionLoader
from fusionloader.system.shm.objects import SharedMemoryExhausted


class Numbers(Dataset):
    def __init__(self, length=64, floats=8):
        self.length, self.floats = length, floats

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return torch.full((self.floats,), float(index)), index


def labels(batches):
    return [batch[1].tolist() for batch in batches]


def fours(count):
    return [list(range(4 * n, 4 * n + 4)) for n in range(count)]


TO_BE_EQUAL = "each tensor to be equal size"  # samples of unlike shapes cannot be collated


class Spilling(Numbers):
    """Whose workers wait for a flag each, behind sample 7; batches have one odd sample."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def reached(self, worker):
        return self.folder / f"{worker} is at a sample"

    def flag(self, worker):
        return Flag(self.folder / f"{worker} may go on")

    def start(self, worker):
        """Raises in the successor of worker 0."""
        failed = self.folder / "failed"
        if worker == 0 and self.reached(0).exists() and not failed.exists():
            failed.touch()
            raise ConnectionError("no server")

    def __getitem__(self, index):
        worker = torch.utils.data.get_worker_info().id
        if index >= 8:
            self.reached(worker).touch()
            self.flag(worker).wait()
        return torch.full((9 if index % 4 == 3 else 8,), float(index))


def at_the_first_batch(iterator):
    """The worker, in a list, that is at mini-batch 0."""
    records = iterator._manager.queue.workers()[:2]
    return [number for number, record in enumerate(records) if record.sequence == 0]


def test_messages_behind_one_that_raises_are_not_lost(tmp_path):
    """Samples that worker 1 has sent lie behind the failure of worker 0's successor."""
    dataset = Spilling(tmp_path)
    loader = FusionLoader(
        dataset, 4, num_workers=2, worker_init_fn=dataset.start, collate_fn=None, prefetch_factor=4
    )
    iterator = iter(loader)
    errors = []
    with pytest.raises(RuntimeError, match=TO_BE_EQUAL) as raised:
        next(iterator)
    errors.append(str(raised.value))
    wait_until(lambda: dataset.reached(0).exists() and dataset.reached(1).exists())
    first = iterator._workers[0]
    first.kill()
    first.join(PATIENCE)
    dataset.flag(0).set()
    manager = iterator._manager
    wait_until(lambda: manager._look() or iterator._workers[0] is not first)
    dataset.flag(1).set()
    for worker in manager._workers._set.workers:  # until both have sent something
        assert select.select([worker.receiver.fd], [], [], PATIENCE)[0]
    with pytest.raises(ConnectionError, match="no server"):
        next(iterator)
    for _ in range(15):
        with pytest.raises(RuntimeError, match=TO_BE_EQUAL) as raised:
            next(iterator)
        errors.append(str(raised.value))
    for number, said in enumerate(errors):
        assert f"index {4 * number + 3} " in said
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize(("workers", "ahead"), [(2, 2), (1, 1)])
def test_an_error_while_the_queue_is_filled_loses_no_batch(workers, ahead):
    dataset = Numbers(160, 1 << 16)
    iterator = iter(FusionLoader(dataset, 4, num_workers=workers, prefetch_factor=ahead))
    kept, errors = [], 0
    for call in range(8):  # what is kept makes it want new slots
        with limited(resource.RLIMIT_FSIZE, 1 << 20) if call % 3 else contextlib.nullcontext():
            try:
                kept.append(next(iterator))
            except SharedMemoryExhausted:
                errors += 1
    assert errors
    assert labels([*kept, *iterator]) == fours(40)


class SlowFirst(Numbers):
    def __init__(self, length, flag):
        super().__init__(length)
        self.flag = flag

    def __getitem__(self, index):
        if index == 0:
            self.flag.wait()
        return super().__getitem__(index)


def test_the_oldest_mini_batch_is_found_however_many_were_delivered_before_it(tmp_path):
    flag = Flag(tmp_path / "flag")
    loader = FusionLoader(SlowFirst(4 * 300, flag), 4, num_workers=2, in_order=False)
    iterator = iter(loader)
    batches = [next(iterator) for _ in range(100)]
    (holder,) = at_the_first_batch(iterator)
    iterator._workers[holder].kill()
    flag.set()
    assert sorted(labels([*batches, *iterator])) == fours(300)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_cannot_be_replaced_at_once_is_replaced_later(workers):
    loader = FusionLoader(Numbers(), 4, num_workers=workers)
    iterator = iter(loader)
    batches = [next(iterator)]
    process = iterator._workers[0]
    process.kill()
    process.join(PATIENCE)
    time.sleep(0.03)  # deaths are looked for every 0.02 s
    with limited(resource.RLIMIT_NOFILE, 3), pytest.raises(OSError, match="Too many open files"):
        while True:
            batches.append(next(iterator))
    time.sleep(0.03)
    batches.append(next(iterator))
    assert loader.stats().worker_restarts == 1
    assert labels([*batches, *iterator]) == fours(16)


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_killed_as_they_start_are_replaced(method, train_set):
    arguments = {"num_workers": 2, "seed": 1, "multiprocessing_context": method}
    expected = list(FusionLoader(train_set, 4, **arguments))
    loader = FusionLoader(train_set, 4, **arguments)
    iterator = iter(loader)
    for process in iterator._workers:
        process.kill()
        process.join(PATIENCE)  # both are dead when the manager looks for the first time
    assert same_batches(expected, iterator)
    assert loader.stats().worker_restarts == 2


def test_a_layout_for_which_memory_was_short_is_settled_by_the_next_call():
    iterator = iter(FusionLoader(Numbers(64, 1 << 16), 4, num_workers=2))
    with limited(resource.RLIMIT_FSIZE, 1 << 20), pytest.raises(SharedMemoryExhausted):
        next(iterator)
    assert labels(iterator) == fours(16)


class RaisesBehind:
    """A queue whose first ``announce_layout`` is followed by a Ctrl-C."""

    def __init__(self, queue):
        self.queue, self.raised = queue, False

    def __getattr__(self, name):
        return getattr(self.queue, name)

    def announce_layout(self, slot, pickled):
        self.queue.announce_layout(slot, pickled)
        if not self.raised:
            self.raised = True
            raise KeyboardInterrupt


def test_a_layout_that_workers_read_stays_where_it_is_after_an_exception():
    iterator = iter(FusionLoader(Numbers(), 4, num_workers=2))
    memory = iterator._manager._memory
    memory._queue = RaisesBehind(memory._queue)
    with pytest.raises(KeyboardInterrupt):
        next(iterator)
    announced = memory._announcement.number
    got = labels(iterator)
    assert got == fours(16) and memory._announcement.number == announced


HELD_BY_A_CHILD = """
import contextlib, gc, os, resource, sys
import torch
from fusionloader import FusionLoader
from support.limits import limited
from test_going_on import Numbers

collate = (lambda samples: torch.stack([s[0] for s in samples])) if sys.argv[1] else None
no_descriptor = limited(resource.RLIMIT_NOFILE, 3) if sys.argv[2] else contextlib.nullcontext()
loader = FusionLoader(Numbers(400), 4, num_workers=2, collate_fn=collate)
iterator = iter(loader)
first = next(iterator)
images = first if collate else first[0]
read, write = os.pipe()
with no_descriptor:
    pid = os.fork()
if pid == 0:
    os.close(write)
    os.read(read, 1)
    os._exit(0 if images[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0] else 1)
del first, images
gc.collect()
slots = None if collate else loader.stats().slots
for _ in range(40):
    next(iterator)
os.close(write)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
for _ in range(40):
    next(iterator)
if slots and not sys.argv[2]:  # the child has ended, and its slot is used again
    assert loader.stats().slots <= slots + 2
"""


@pytest.mark.parametrize("no_descriptor", ["", "no descriptor is left"])
@pytest.mark.parametrize("collate", ["", "collate_fn"])
@pytest.mark.few(2)
def test_a_batch_that_a_forked_child_holds_is_not_written_again(collate, no_descriptor, tmp_path):
    """In a process of its own: libuv, which other tests use through torch.distributed, aborts in a
    forked child that has no descriptors left."""
    status, said = warm_start.end_of(HELD_BY_A_CHILD, tmp_path, collate, no_descriptor)
    assert status == 0, said


def first_images(samples):
    return torch.stack([sample[0] for sample in samples])


class Mixed(Numbers):
    """Samples that are of a batch of another loader, which forked workers have as it was."""

    def __getitem__(self, index):
        return self.others[index % 4, 0].clone()


@pytest.mark.parametrize("collate", [None, first_images], ids=["rows", "whole batches"])
def test_a_batch_that_a_forked_workers_dataset_holds_is_not_written_again(collate):
    others = iter(FusionLoader(Numbers(400, 4096), 4, num_workers=2, collate_fn=collate))

    def other():
        return next(others) if collate else next(others)[0]

    mixed = Mixed(16)
    loader = FusionLoader(
        mixed, 4, num_workers=2, persistent_workers=True, multiprocessing_context="fork"
    )
    for _ in range(4):
        mixed.others = other()
        for _ in range(8):
            other()
        assert [batch.tolist() for batch in loader] == [[0.0, 1.0, 2.0, 3.0]] * 4


class Texts(Numbers):
    def __getitem__(self, index):
        if index == 48:
            raise ValueError("bad")
        return torch.full((8,), -1, dtype=torch.int64), f"text {index}"


def test_rows_that_are_left_out_are_not_read():
    """The last batch lies in a slot where a longer one has been, with other bytes at its rows."""
    loader = FusionLoader(Texts(51), 8, num_workers=1, on_error="skip")
    texts = [text for batch in loader for text in batch[1]]
    assert texts == [f"text {n}" for n in range(51) if n != 48]


class HeldAt16(Numbers):
    def __init__(self, folder):
        super().__init__()
        self.reached, self.flag = folder / "reached", Flag(folder / "flag")

    def __getitem__(self, index):
        if index == 16:
            self.reached.touch()
            self.flag.wait()
        return super().__getitem__(index)


def test_tiny_batches_that_a_stopped_worker_has_left_out_are_found(tmp_path):
    """A worker stopped between the two steps of a claim: the queue word has moved on, alone."""
    dataset = HeldAt16(tmp_path)
    iterator = iter(FusionLoader(dataset, 8, num_workers=1, prefetch_factor=3))
    batches = [next(iterator)]
    wait_until(dataset.reached.exists)  # the worker has half of mini-batch 2, and nothing later
    (job,) = (job for job in iterator._manager.in_flight.wanted if job.number == 3)
    word = ctypes.c_uint64.from_address(job.descriptor.address)
    head, tail = word.value & 0xFFFFF, word.value >> 20 & 0xFFFFF
    assert (head, tail) == (0, 2)
    word.value = (word.value & ~(0xFFFFF << 20)) | (head << 20)  # as a claim's first step leaves it
    dataset.flag.set()
    assert labels([*batches, *iterator]) == [list(range(8 * n, 8 * n + 8)) for n in range(8)]


class FailsThenDies(Numbers):
    """Sample 5 fails once, and the process that then makes sample 6 dies."""

    def __init__(self, folder):
        super().__init__()
        self.folder = folder

    def __getitem__(self, index):
        failed, died = self.folder / "failed", self.folder / "died"
        if index == 5 and not failed.exists():
            failed.touch()
            raise ValueError("once")
        if index == 6 and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


@pytest.mark.usefixtures("any_may_die")
def test_what_a_worker_reported_before_it_died_does_not_outlive_the_redo(tmp_path):
    loader = FusionLoader(FailsThenDies(tmp_path), 4, num_workers=1, on_error="skip")
    assert labels(loader) == fours(16)
    assert loader.stats().skipped == 0
    assert loader.stats().worker_restarts == 1


class Sampler:
    """A generator that raises in the middle."""

    def __len__(self):
        return 64

    def __iter__(self):
        yield from range(32)
        raise ConnectionError("no more indices")


def test_an_error_of_the_sampler_is_not_taken_for_the_end_of_the_epoch():
    iterator = iter(FusionLoader(Numbers(), 4, sampler=Sampler(), num_workers=2))
    batches, errors = [], []
    for _ in range(12):
        try:
            batches.append(next(iterator))
        except Exception as error:
            errors.append(error)
    assert labels(batches) == fours(8)
    assert [type(error) for error in errors[:1]] == [ConnectionError]
    assert all("draws no more batches" in str(error) for error in errors[1:])
    assert isinstance(errors[-1], RuntimeError)


def opened():
    """What the loader opens; pipes are multiprocessing's, too, which leaves some open."""
    found = [os.readlink(f"/proc/self/fd/{fd}") for fd in range(1000) if is_open(fd)]
    return sorted(each for each in found if "fusionloader" in each or "eventfd" in each)


def is_open(fd):
    return os.path.islink(f"/proc/self/fd/{fd}")


def test_what_an_iterator_opened_that_cannot_be_made_is_closed(monkeypatch):
    for name, value in environment(2)[0].items():  # ranks share their workers
        monkeypatch.setenv(name, value)
    loader = FusionLoader(Numbers(), 4, num_workers=2)
    list(loader)
    gc.collect()
    numbers = set(map(int, os.listdir("/proc/self/fd")))
    free = min(set(range(len(numbers) + 1)) - numbers)
    before = opened()
    for more in range(8):
        with limited(resource.RLIMIT_NOFILE, free + more), pytest.raises(OSError):
            iter(loader)
        gc.collect()
        assert opened() == before, more
    loader.close()

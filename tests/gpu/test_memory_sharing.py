"""Lending memory to a GPU worker, end to end: real processes and kills, a driver without a device.

The GPU worker is DALI's CPU backend, whose own memory is said not to suffice, so that its launches
borrow.
"""

import functools
import importlib.util
import os
import signal
import time
import warnings

import pytest
from stand_in_allocator import MIB, StandInAllocator
from stand_in_pool import StandInPool
from support.batches import same_batches
from support.waiting import PATIENCE, wait_until
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, GpuWorker, _native
from fusionloader.gpu import eligibility
from fusionloader.gpu.memory_lender import MemoryOptions

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("nvidia") is None
        or importlib.util.find_spec("nvidia.dali") is None,
        reason="DALI is not installed: pip install nvidia-dali-cuda120",
    ),
    pytest.mark.usefixtures("fake_library"),
]
# Mini-batches of one tiny-batch: while training waits for the oldest one, the GPU worker is at the
# next ones, and has memory when training wants it back.
BATCHES = [list(range(start, start + 4)) for start in range(0, 40, 4)] * 3
CACHED = [32 * MIB, 24 * MIB]
PATTERN = 0x7E577E57


class Training:
    """A loader, and training that has two free blocks cached and sees to it that they are its own.

    ``patience`` is long where lateness is not what is tested: the machine may be busy.
    """

    def __init__(self, image_folder, marks, monkeypatch, *, fate="works", patience=PATIENCE):
        self.marks = marks
        self.allocator = StandInAllocator()
        for size in CACHED:
            self.allocator.reserve(size)
        pool = functools.partial(StandInPool, str(marks), fate)
        options = MemoryOptions(0, 40 * MIB, True, self.allocator, pool, patience)
        monkeypatch.setattr(eligibility, "memory_options", lambda choice: options)
        steps = v1.Compose([v1.CenterCrop(32), v1.PILToTensor()])
        self.dataset = ImageFolder(str(image_folder), steps)
        self.loader = FusionLoader(
            self.dataset,
            batch_sampler=BATCHES,
            num_workers=1,
            prefetch_factor=3,
            persistent_workers=True,
            gpu_worker=GpuWorker(device="cpu", sharing="temporal"),
        )
        self.expected = list(FusionLoader(self.dataset, batch_sampler=BATCHES, num_workers=1))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.loader.close()
        self.allocator.close()

    @property
    def worker(self):
        return self.loader.stats().gpu_worker

    @property
    def memory(self):
        return self.worker.get("memory", {})

    def until(self, condition, seconds=PATIENCE):
        """Goes through epochs until then; what they give is what they should."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, self.worker
            batches = []
            for batch in self.loader:
                self.use_memory()
                batches.append(batch)
            assert same_batches(batches, self.expected)

    def use_memory(self):
        """What training does between batches: all memory is free, and what it writes stays."""
        assert self.allocator.used == set()
        blocks = self.allocator.free_blocks()
        assert [size for _, size in blocks] == CACHED
        for address, size in blocks:
            _native.cuda.fill(0, address, PATTERN, size // 4)
        for address, size in blocks:
            for place in range(0, size, 8 * MIB):
                word = _native.cuda.read(0, address + place, 4)
                assert int.from_bytes(word, "little") == PATTERN

    def launches(self):
        """Launches in borrowed memory so far."""
        launched = self.marks / "launched"
        return launched.stat().st_size if launched.exists() else 0


@pytest.fixture
def training(image_folder, tmp_path, monkeypatch):
    return functools.partial(Training, image_folder, tmp_path, monkeypatch)


def test_launches_borrow_what_training_does_not_use_and_every_batch_is_the_same(training):
    with training() as running:
        running.until(lambda: running.launches() > 8)
        assert running.worker["samples"] > 0
        reported = running.memory
        assert reported["why_not"] is None
        assert reported["lent_bytes"] >= reported["borrowed_bytes"] > 0
        assert running.allocator.reserved() == sum(CACHED)
        assert running.worker["restarts"] == 0
        # The limit is 40 MiB: the larger block is lent, never both.
        assert reported["lent_bytes"] % (32 * MIB) == 0


@pytest.mark.matrix
@pytest.mark.timeout(900)
def test_workers_that_are_late_are_not_given_up_but_lent_nothing_in_the_end(training):
    with training(fate="keeps", patience=0.02) as running:
        running.until(lambda: running.memory.get("why_not") is not None)
        assert "did not return memory within 160 ms" in running.memory["why_not"]
        assert running.memory["kills"] == 4
        queue = running.loader._iterator._manager.queue
        running.until(lambda: queue.gpu_is_ready)  # the fifth one
        assert (running.worker["gone"], running.worker["restarts"]) == (None, 0)


@pytest.mark.matrix
def test_a_worker_that_dies_with_borrowed_memory_loses_neither_memory_nor_samples(training):
    with training(fate="dies") as running:
        with pytest.warns(RuntimeWarning, match="exited unexpectedly with exit code 1"):
            running.until(lambda: running.worker.get("restarts", 0) > 0)
        before = running.launches()
        running.until(lambda: running.launches() > before)


def test_a_lost_device_ends_the_worker_once_and_training_goes_on(training):
    with training(fate="loses") as running:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            running.until(lambda: running.worker.get("gone") is not None)
            running.until(lambda: True)
        assert running.worker["restarts"] == 0
        reported = [str(one.message) for one in said if "GPU worker" in str(one.message)]
        assert len(reported) == 1
        assert "goes on without its GPU worker" in reported[0]
        assert "illegal memory access" in reported[0]
        assert "CPU workers" in reported[0] and "\n" not in reported[0]
        assert reported[0].endswith("Its device failed: a new process may be able to use it again")
        assert running.allocator.used == set()


@pytest.mark.matrix  # in the suite by test_memory_lender and gpu_memory/test_probe
def test_a_process_that_cannot_open_memory_goes_without_and_says_why_once(
    training, monkeypatch, caplog
):
    monkeypatch.setenv("FAKE_CUDA_NO_IPC", "1")
    with training() as running:
        running.until(lambda: running.memory.get("why_not") is not None)
        assert running.memory["lent_bytes"] == 0
    said = [
        record for record in caplog.records if "lends the GPU worker no memory" in record.message
    ]
    assert len(said) == 1


def test_an_allocator_that_cannot_lend_is_said_at_once(training, caplog):
    with training() as running:
        running.allocator.refuses = "it is of another kind"
        list(running.loader)
        assert running.memory["why_not"] == "it is of another kind"
    assert "it is of another kind" in caplog.text


def test_memory_is_lent_while_training_is_busy_elsewhere(training):
    with training() as running:
        running.until(lambda: running.launches() > 0)
        cpu_worker = running.loader._iterator._workers[0].pid
        os.kill(cpu_worker, signal.SIGSTOP)  # or it would leave nothing to do
        try:
            # No batch is asked for: the worker may give back what only the other one can do then.
            iterator = iter(running.loader)
            before = running.launches()
            with running.loader.lend_gpu_memory():
                wait_until(lambda: running.launches() > before, "nothing is launched")
            running.use_memory()
        finally:
            os.kill(cpu_worker, signal.SIGCONT)
        assert same_batches(list(iterator), running.expected)


def test_without_a_gpu_worker_lending_memory_does_nothing(train_set):
    loader = FusionLoader(train_set, 4, num_workers=1)
    with loader.lend_gpu_memory():
        assert len(list(loader)) == 10
    with loader.lend_gpu_memory():
        pass

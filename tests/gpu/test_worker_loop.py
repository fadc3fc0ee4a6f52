"""What the GPU worker hands to its task, and what it leaves to CPU workers."""

import os
from collections import Counter
from dataclasses import replace

import pytest
import torch
from support.control_blocks import ControlBlock

from fusionloader._native import GpuState, TinyBatchState
from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.data.sources.byte_ranges import ByteRanges
from fusionloader.data.sources.ranged_samples import RangedSamples
from fusionloader.gpu import worker
from fusionloader.gpu.worker import GpuWorkerConfig
from fusionloader.transforms.executors.device.launch_memory import SAMPLE_BYTES
from fusionloader.transforms.executors.device.make_task import HeadOptions
from fusionloader.transforms.executors.device_errors import DecodeFailed, FileRefused
from fusionloader.workers.messages import Receiver

ROW_BYTES = 64
REASONS = {
    b"refused": FileRefused("the decoder cannot do it"),
    b"drawn": "not with these draws",
    b"damaged": DecodeFailed("failed to decode"),
}


class ScriptedTask:
    """Notes the files that it gets, and refuses some by their content."""

    def __init__(self):
        self.seen, self.given_up = [], []

    def give_up(self, samples):
        self.given_up.append(samples)

    def begin(self, samples):
        self.seen.append([sample.encoded for sample in samples])
        return samples

    def finish(self, samples, writing):
        with writing():
            return [REASONS.get(sample.encoded) for sample in samples]


class Work(ControlBlock):
    """A GPU worker's loop in this process, and mini-batches of four files for it."""

    def __init__(self, folder, task, monkeypatch, data):
        monkeypatch.setattr(worker, "make_task", lambda *_: task)
        contents = [b"good", b"refused", b"drawn", b"damaged"]
        paths = [folder / str(number) for number in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        self.count = len(contents)
        table = DatasetTable.of_files([str(path) for path in paths], [0] * self.count)
        if data == "ranges":
            self.shard = folder / "shard"
            self.shard.write_bytes(b"-".join(contents))
            nbytes = list(map(len, contents))
            starts = [sum(nbytes[:number]) + number for number in range(self.count)]
            ranges = ByteRanges([self.shard], [0] * self.count, starts, nbytes)
            table = RangedSamples(ranges, [0] * self.count).table()
        super().__init__(2, gpu=1)
        fd, message_fd = os.pipe()
        self._messages, self._message_fd = Receiver(fd), message_fd
        config = GpuWorkerConfig(
            worker=1,
            parent=os.getppid(),
            control_fd=self.control_fd,
            data_fd=self.arena.fd,
            table_fd=table.fd,
            table_bytes=table.nbytes,
            message_fd=message_fd,
            plan=None,
            row_bytes=ROW_BYTES,
            slot_row_bytes=ROW_BYTES,
            device_id=None,
            tiny_batch_size=1,
            most_samples=self.count,
            fixed_group=True,
            buffers=(),
            head=HeadOptions(),
        )
        self._table = table
        self.loop = worker.GpuWorkerLoop(config, self.workers[1])
        self.manager.set_gpu(GpuState.OPEN, 0)

    def mini_batch(self):
        """Publishes one and has the worker do it; returns the tiny-batches that it leaves."""
        sequence, nbytes = len(self.slot_of), self.count * (ROW_BYTES + 8) + 64
        self.publish(sequence, self.count, payload_bytes=nbytes, number=sequence)
        claim = self.loop._claim()
        self.loop._finish(self.loop._begin(claim))
        left = []
        while (other := self.workers[0].claim_next(1)) is not None:
            left.append(other.first)
            self.workers[0].finish(other, other.first, TinyBatchState.COMPLETED)
        assert self.status(sequence).completed == self.count
        return left

    def refused(self):
        """Returns the counts of refused samples since the last call, by reason."""
        reported = Counter()
        received = []
        self._messages.handle(received.append)
        for message in received:
            reported.update(message.counts)
        assert all(type(reason) is str for reason in reported)
        return reported

    def close(self):
        self._messages.close()
        os.close(self._message_fd)
        super().close()


@pytest.fixture
def task():
    return ScriptedTask()


@pytest.fixture(params=["files", "ranges"])
def work(make_control_block, tmp_path, task, monkeypatch, request):
    return make_control_block(tmp_path, task, monkeypatch, request.param, kind=Work)


def test_a_file_that_was_refused_goes_to_cpu_workers_at_once_the_next_time(work, task):
    for _ in range(2):
        assert work.mini_batch() == [1, 2, 3]
        assert work.refused() == {str(reason): 1 for reason in REASONS.values()}
    first, second = task.seen
    assert set(first) == {b"good", b"refused", b"drawn", b"damaged"}
    assert set(second) == {b"good", b"drawn", b"damaged"}  # other draws may be possible


def test_a_file_that_failed_is_left_for_good_the_second_time_with_memory_free(
    work, task, monkeypatch
):
    """A library that finds no memory for an image says what it says of a damaged one."""
    short = [True, False, False]
    monkeypatch.setattr(work.loop, "_is_short", lambda: short.pop(0))
    for _ in range(4):
        assert work.mini_batch() == [1, 2, 3]
    assert [b"damaged" in seen for seen in task.seen] == [True, True, True, False]
    assert short == [False]  # the first failure tells nothing, whatever is free


def test_memory_is_short_where_a_launch_would_not_fit_into_what_is_free(work, monkeypatch):
    assert not work.loop._is_short()
    config = replace(work.loop._config, device_id=0, most_samples=4)
    monkeypatch.setattr(work.loop, "_config", config)
    for free, short in ((4 * SAMPLE_BYTES - 1, True), (4 * SAMPLE_BYTES, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 1 << 40))
        assert work.loop._is_short() == short


def test_a_trace_sees_its_groups(work):
    work.manager.set_tracing(True)
    work.mini_batch()
    work.manager.set_gpu(GpuState.OPEN, 0)
    work.mini_batch()
    spans = [span for span in work.manager.take_spans() if span.worker == 1]
    assert [(span.sequence, span.first, span.count, span.samples) for span in spans] == [
        (0, 0, 4, 4),
        (1, 0, 4, 4),
    ]
    assert spans[0].end_ns <= spans[1].begin_ns


def publish(work, count):
    for sequence in range(count):
        nbytes = work.count * (ROW_BYTES + 8) + 64
        work.publish(sequence, work.count, payload_bytes=nbytes, number=sequence)


def test_a_second_group_is_begun_only_beside_training(work, monkeypatch):
    head = HeadOptions(groups=2)
    monkeypatch.setattr(work.loop, "_config", replace(work.loop._config, head=head))
    publish(work, 3)

    def claimed():
        claim = work.loop._claim()
        if claim is not None:
            work.loop._begun.append(work.loop._begin(claim))
        return claim is not None

    assert [claimed(), claimed()] == [True, False]
    work.manager.set_gpu(GpuState.OPEN, 0, beside=True)
    assert [claimed(), claimed()] == [True, False]
    work.manager.set_gpu(GpuState.OPEN, 0)
    work.loop._finish(work.loop._begun.popleft())
    assert not claimed()
    work.loop._finish(work.loop._begun.popleft())
    assert claimed()


class LentMemory:
    """Runs launches, and notes how many samples each had."""

    def __init__(self, short=False):
        self.short, self.used, self.launched = short, False, []

    def run(self, launch, samples):
        self.launched.append(len(samples))
        return [None] * len(samples)


@pytest.mark.parametrize("where", ["begin", "finish", "nowhere", "not beside", "while short"])
def test_only_a_launch_that_may_lack_memory_waits_for_what_is_lent(work, task, monkeypatch, where):
    def fail(*_):
        raise RuntimeError("CUDA out of memory")

    memory = LentMemory(short=where == "while short")
    monkeypatch.setattr(work.loop, "_memory", memory)
    if where in ("begin", "finish"):
        monkeypatch.setattr(task, where, fail)
    task.run = None  # handed on to the memory
    work.manager.set_gpu(GpuState.OPEN, 0, beside=where != "not beside")
    work.mini_batch()
    assert memory.launched == ([] if where == "nowhere" else [4])
    assert memory.used == (where in ("begin", "finish", "nowhere"))


def test_a_group_in_flight_is_given_up_before_another_one_is_repeated(work, task, monkeypatch):
    def fail(*_):
        raise RuntimeError("CUDA out of memory")

    memory = LentMemory()
    monkeypatch.setattr(work.loop, "_memory", memory)
    monkeypatch.setattr(task, "finish", fail)
    task.run = None
    head = HeadOptions(groups=2)
    monkeypatch.setattr(work.loop, "_config", replace(work.loop._config, head=head))
    work.manager.set_gpu(GpuState.OPEN, 0, beside=True)
    publish(work, 2)
    for _ in range(2):
        work.loop._begun.append(work.loop._begin(work.loop._claim()))
    second = work.loop._begun[1].task
    for _ in range(2):
        work.loop._finish(work.loop._begun.popleft())
    assert memory.launched == [4, 4]
    assert task.given_up == [second]


def test_what_fails_for_another_reason_than_memory_ends_the_worker(work, task, monkeypatch):
    def fail(*_):
        raise RuntimeError("no")

    monkeypatch.setattr(work.loop, "_memory", LentMemory())
    monkeypatch.setattr(task, "finish", fail)
    work.manager.set_gpu(GpuState.OPEN, 0, beside=True)
    with pytest.raises(RuntimeError, match="^no$"):
        work.mini_batch()


@pytest.mark.parametrize("work", ["ranges"], indirect=True)
def test_a_shard_that_changed_is_left_to_cpu_workers_which_say_so(work):
    os.utime(work.shard, ns=(1, 1))
    assert work.mini_batch() == [0, 1, 2, 3]
    assert work.refused() == {"the file cannot be read": 4}

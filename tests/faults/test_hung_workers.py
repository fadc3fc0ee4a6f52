"""Workers that make no progress are named with their sample, and another one does their work."""

import logging
import os
import re
import shutil
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.batches import next_in_time, same_batches
from support.images import eval_transform
from support.waiting import PATIENCE, is_stopped, wait_until
from torch.utils.data import Dataset, IterableDataset, default_collate
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, WorkerPool
from fusionloader.engine.manager import stalls
from fusionloader.engine.manager.stalls import HungWorkers

SECONDS = 1.5  # without progress, which a busy machine may take from others as well
STALLED = rf"made no progress for {SECONDS} s \(stall_timeout\)"


class HangsOnce(Dataset):
    """Whoever comes to sample 5 first gets no further."""

    def __init__(self, folder, size=8):
        self.hung, self.size = folder / "hung", size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        if index == 5 and not self.hung.exists():
            self.hung.touch()
            time.sleep(10 * PATIENCE)
        return torch.full((3,), index)


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.few(2)
@pytest.mark.usefixtures("any_may_die")
@pytest.mark.parametrize("collate", [default_collate, torch.stack], ids=["rows", "whole batches"])
@pytest.mark.parametrize("pooled", [False, True])
def test_what_a_hung_worker_was_at_is_done_by_another(tmp_path, caplog, pooled, collate):
    with WorkerPool(2) as pool:
        options = {"pool": pool} if pooled else {"num_workers": 2}
        options |= {"stall_timeout": SECONDS, "collate_fn": collate}
        loader = FusionLoader(HangsOnce(tmp_path), 2, **options)
        with caplog.at_level(logging.WARNING):
            assert torch.cat(list(loader))[:, 0].tolist() == list(range(8))
    assert loader.stats().worker_restarts >= 1
    said = rf"worker \d \(pid \d+\) {STALLED} at index 5 and was killed; it is replaced"
    assert len([text for text in warnings_of(caplog) if re.match(said, text)]) == 1


def test_a_file_that_hangs_whoever_reads_it_is_named(image_folder, tmp_path, image_that_hangs):
    shutil.copytree(image_folder, tmp_path / "copy")
    dataset = ImageFolder(str(tmp_path / "copy"), eval_transform())
    path = dataset.samples[5][0]
    Path(path).write_bytes(image_that_hangs)
    loader = FusionLoader(dataset, 4, num_workers=2, stall_timeout=SECONDS)
    told = rf"{STALLED} at {re.escape(f'index 5 ({path})')} and was killed\. 3 workers died on"
    with pytest.raises(RuntimeError, match=told):
        list(loader)


@pytest.mark.usefixtures("any_may_die")
@pytest.mark.parametrize("share", [None, "stopped"])
def test_a_worker_that_is_stopped_between_samples_is_replaced(image_folder, caplog, share):
    dataset = ImageFolder(str(image_folder), eval_transform())
    expected = list(FusionLoader(dataset, 4))
    word = share and f"{share}-{os.getpid()}"
    with FusionLoader(
        dataset, 4, num_workers=1, persistent_workers=True, stall_timeout=SECONDS, share=word
    ) as loader:
        list(loader)
        (worker,) = loader._iterator._manager.processes
        os.kill(worker.pid, signal.SIGSTOP)
        wait_until(lambda: is_stopped(worker.pid), "it is not stopped")
        with caplog.at_level(logging.WARNING):
            assert same_batches(expected, list(loader))
        stalled = rf"{STALLED} while stopped by a signal.* and was killed"
        said = rf"worker \d+ \(pid {worker.pid}\) {stalled}"
        assert any(re.match(said, text) for text in warnings_of(caplog))


class Stream(IterableDataset):
    def __init__(self, samples=range(8)):
        self.samples = samples

    def __iter__(self):
        return map(self.samples.__getitem__, range(8))


@pytest.mark.usefixtures("any_may_die")
def test_a_stream_ends_with_an_error_that_names_the_worker(tmp_path):
    loader = FusionLoader(Stream(HangsOnce(tmp_path)), 2, num_workers=1, stall_timeout=SECONDS)
    told = rf"worker 0 {STALLED} at mini-batch 2 and was killed\. Nobody can go on with its part"
    with pytest.raises(RuntimeError, match=told):
        list(loader)


class Clock:
    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(stalls.time, "monotonic", lambda: self.now)


class Worker:
    """One worker that is at a sample, and its manager."""

    def __init__(self, timeout, **place):
        place = {"sequence": 3, "position": 1, "since_seconds": 0.0, "samples": 0} | place
        self.record = SimpleNamespace(pid=os.getpid(), **place)
        self.killed = []
        self.watch = HungWorkers(self, timeout, lambda record: "index 7")

    def local_records(self):
        return [(0, self.record)]

    def kill(self, number, pid, why):
        self.killed.append(why)


def test_only_time_in_which_somebody_waits_is_counted(monkeypatch):
    clock = Clock(monkeypatch)
    worker = Worker(60.0)
    for _ in range(10):  # the job is suspended for an hour, again and again
        clock.now += 3600
        worker.watch.look()
    assert not worker.killed
    for _ in range(45):
        clock.now += 1.0
        worker.watch.look()
    assert worker.killed == ["made no progress for 60 s (stall_timeout) at index 7"]


def test_progress_and_idleness_begin_the_count_again(monkeypatch):
    clock = Clock(monkeypatch)
    worker = Worker(10.0)
    places = [{"position": 2}, {"since_seconds": 1.0}, {"sequence": 4}, {"sequence": None}]
    for place in places:
        for _ in range(9):
            clock.now += 1.0
            worker.watch.look()
        vars(worker.record).update(place)
    for _ in range(100):
        clock.now += 1.0
        worker.watch.look()
    assert not worker.killed


def test_one_that_does_not_even_end_when_killed_is_an_error(monkeypatch):
    clock = Clock(monkeypatch)
    worker = Worker(10.0)
    with pytest.raises(RuntimeError, match="makes no progress at index 7, and has not ended 10 s"):
        for _ in range(40):
            clock.now += 1.0
            worker.watch.look()
    assert len(worker.killed) == 1


def test_plans_have_a_limit_and_user_code_has_none(image_folder, tmp_path):
    line = "a worker without progress for {} s is replaced (stall_timeout)"
    images = ImageFolder(str(image_folder), eval_transform())
    assert line.format(60) in FusionLoader(images, 4, num_workers=1).explain()
    never = FusionLoader(images, 4, num_workers=1, stall_timeout=0)
    assert "stall_timeout" not in never.explain()
    own = HangsOnce(tmp_path)
    assert "stall_timeout" not in FusionLoader(own, 4, num_workers=1).explain()
    assert line.format(5) in FusionLoader(own, 4, num_workers=1, stall_timeout=5).explain()


@pytest.mark.parametrize("wrong", [-1, float("inf"), float("nan"), "60", True])
def test_a_limit_that_is_none_is_refused(wrong):
    with pytest.raises(ValueError, match="stall_timeout should be a number of seconds, 0 for none"):
        FusionLoader([1], num_workers=1, stall_timeout=wrong)


def test_a_limit_for_no_workers_is_refused():
    with pytest.raises(ValueError, match="stall_timeout is for workers"):
        FusionLoader([1], stall_timeout=5)


@pytest.mark.usefixtures("any_may_die")
def test_a_worker_that_hangs_in_an_earlier_epoch_is_waited_for_until_the_timeout(tmp_path):
    dataset, options = HangsOnce(tmp_path, 400), {"num_workers": 2, "persistent_workers": True}
    with FusionLoader(dataset, 1, timeout=1, **options) as loader:
        first = iter(loader)
        for _ in range(5):
            next_in_time(first)
        wait_until(dataset.hung.exists)
        del first
        with pytest.raises(RuntimeError, match="timed out after 1 seconds.*index 5 for"):
            list(loader)

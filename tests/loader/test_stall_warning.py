"""While nothing arrives for long, one warning says who is at what, and since when."""

import json
import linecache
import os
import re
import shutil
import time
import warnings
from pathlib import Path

import pytest
import torch
from support.images import eval_transform
from support.waiting import Flag, wait_until
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, WorkerPool
from fusionloader.engine.manager import stalls

WHERE = r"worker (\d)(?: \(pid (\d+)\))? (?:at (index \d+) for (\d+\.\d) s|is idle|has not begun)"


class Stalling(Dataset):
    """Sample 5 waits until it was warned about, and then long enough for another warning."""

    def __init__(self, folder):
        self.stalls = Flag(folder / "stalls")
        self.warned = Flag(folder / "warned")

    def __len__(self):
        return 8

    def __getitem__(self, index):
        if index == 5:
            self.stalls.set()
            self.warned.wait()
            time.sleep(0.7)
        return torch.tensor([index, os.getpid()])


def epoch(monkeypatch, loader, before):
    """An epoch's batches and its warnings; 0.3 s are long once ``before`` batches are there."""
    batches, caught = [], []

    def show(message, category, filename, line, *rest):
        if not str(message).startswith("FusionLoader:"):
            return  # Python 3.12 and later warn of a fork beside threads that other tests left
        caught.append((str(message), linecache.getline(filename, line).strip()))
        monkeypatch.setattr(stalls, "WARN_SECONDS", 60.0)  # for the batches after this
        loader.dataset.warned.set()

    loader.dataset.stalls.clear()
    loader.dataset.warned.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", show)
        for batch in loader:
            batches.append(batch)
            if len(batches) == before:
                loader.dataset.stalls.wait()
                monkeypatch.setattr(stalls, "WARN_SECONDS", 0.3)
    return batches, caught


@pytest.mark.parametrize(("in_order", "before"), [(True, 2), (False, 3)])
@pytest.mark.few(1)
def test_one_warning_names_the_workers_and_their_samples(monkeypatch, tmp_path, in_order, before):
    assert stalls.WARN_SECONDS == 60.0
    loader = FusionLoader(
        Stalling(tmp_path), 2, num_workers=2, tiny_batch_size=1, in_order=in_order
    )
    batches, caught = epoch(monkeypatch, loader, before)
    rows = torch.cat(batches).tolist()
    assert sorted(index for index, _ in rows) == list(range(8))
    assert len(caught) == 1
    said, line = caught[0]
    assert re.match(r"FusionLoader: no batch for \d+ s\. ", said)
    places = re.findall(WHERE, said)
    assert [number for number, *_ in places] == ["0", "1"]
    pids = {index: str(pid) for index, pid in rows}
    assert [place[1:3] for place in places if place[2] == "index 5"] == [(pids[5], "index 5")]
    assert all(float(since) > 0 for _, _, name, since in places if name == "index 5")
    assert line == "for batch in loader:"


@pytest.mark.matrix
def test_the_next_epoch_has_a_warning_of_its_own(monkeypatch, tmp_path):
    loader = FusionLoader(Stalling(tmp_path), 2, num_workers=2)
    assert [len(epoch(monkeypatch, loader, 2)[1]) for _ in range(2)] == [1, 1]


def test_a_file_that_cannot_be_read_on_is_named_with_its_path(
    monkeypatch, image_folder, tmp_path, image_that_hangs
):
    shutil.copytree(image_folder, tmp_path / "copy")
    dataset = ImageFolder(str(tmp_path / "copy"), eval_transform())
    path = dataset.samples[5][0]
    Path(path).write_bytes(image_that_hangs)
    loader = FusionLoader(dataset, 4, num_workers=2, tiny_batch_size=1)
    iterator = iter(loader)
    next(iterator)
    manager = iterator._manager
    wait_until(lambda: "index 5 " in manager._worker_report(), "nobody reads it")
    monkeypatch.setattr(stalls, "WARN_SECONDS", 0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="no batch for") as caught:
            next(iterator)
    named = rf"worker \d \(pid \d+\) at index 5 \({re.escape(path)}\) for \d+\.\d s"
    assert re.search(named, str(caught.value))


class Texts(Stalling):
    def __getitem__(self, index):
        return f"{super().__getitem__(index).tolist()}"


@pytest.mark.parametrize(("in_order", "before"), [(True, 2), (False, 3)])
@pytest.mark.few(1)
def test_one_warning_names_the_workers_and_their_whole_mini_batches(
    monkeypatch, tmp_path, in_order, before
):
    loader = FusionLoader(Texts(tmp_path), 2, num_workers=2, in_order=in_order, collate_fn=list)
    batches, caught = epoch(monkeypatch, loader, before)
    rows = [json.loads(text) for batch in batches for text in batch]
    assert len(caught) == 1
    assert sorted(index for index, _ in rows) == list(range(8))
    said, line = caught[0]
    pids = {index: pid for index, pid in rows}
    assert re.match(r"FusionLoader: no batch for \d+ s\. worker 0 ", said)
    assert re.search(rf"\(pid {pids[5]}\) at index 5 for", said)
    assert line == "for batch in loader:"


class Held(Dataset):
    """Samples that are not made before there is a file."""

    def __init__(self, release):
        self.release = release

    def __len__(self):
        return 4

    def __getitem__(self, index):
        while not self.release.exists():
            time.sleep(0.01)
        return index


class At(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index


def test_it_is_said_that_a_pools_worker_is_at_another_loader(tmp_path):
    with WorkerPool(1) as pool:
        holding = FusionLoader(Held(tmp_path / "release"), 2, pool=pool, timeout=120)
        waiting = FusionLoader(At(), 2, pool=pool, timeout=1)
        held = iter(holding)
        deadline = time.monotonic() + 120
        while not any(worker.sequence is not None for worker in held._manager.queue.workers()):
            assert time.monotonic() < deadline, "the worker has not begun"
            time.sleep(0.01)
        with pytest.raises(RuntimeError, match="worker 0 is at a sample of another loader of the"):
            next(iter(waiting))
        (tmp_path / "release").touch()
        assert len(list(held)) == 2

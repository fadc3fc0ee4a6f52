"""Loaders over streams: the batches of a folder, also after deaths and errors of the server."""

from __future__ import annotations

import itertools
import pathlib
import zlib

import pytest
import torch
from support.faulty_server import serving
from support.images import train_transform
from support.tar_shards import tar_of
from support.waiting import children_that_run, gone, wait_until
from torch.utils.data import DistributedSampler, Subset
from torchvision.datasets import ImageFolder

from fusionloader import Cache, FusionLoader
from fusionloader.data.sources import TarStream

SHARDS = 3
OPTIONS = {"batch_size": 8, "num_workers": 2, "seed": 3}
READER = "fusionloader.data.read_ahead.reader"


@pytest.fixture
def folder(image_folder):
    return ImageFolder(str(image_folder), train_transform())


@pytest.fixture
def server(folder, tmp_path, monkeypatch):
    """Serves the folder's images in shards, one after the other."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    each = -(-len(folder) // SHARDS)
    shards = {}
    for number in range(SHARDS):
        members = []
        for index in range(number * each, min(len(folder), (number + 1) * each)):
            path, target = folder.samples[index]
            members.append((f"{index:04d}.jpg", pathlib.Path(path).read_bytes()))
            members.append((f"{index:04d}.cls", str(target).encode()))
        shards[f"train-{number}.tar"] = tar_of(members)
    with serving(shards) as state:
        yield state


@pytest.fixture
def stream(server):
    return stream_of(server)


def stream_of(server, **options):
    given = {"shuffle_window": 16, "retries": 2, "timeout": 10.0, **options}
    found = TarStream(server.url("train-{0..2}.tar"), transform=train_transform(), **given)
    server.asked.clear()
    return found


def hashed(batch):
    images, targets = batch
    return zlib.crc32(images.numpy().tobytes()), targets.tolist()


def batches(dataset, sampler=None, **options):
    given = {**OPTIONS, **options}
    loader = FusionLoader(dataset, sampler=sampler, **given)
    return [hashed(batch) for batch in loader]


def test_batches_are_those_of_a_folder(server, stream, folder):
    order = list(stream.sampler(seed=4))
    assert sorted(order) == list(range(len(folder)))
    assert batches(stream, stream.sampler(seed=4)) == batches(folder, order)
    assert batches(Subset(stream, order)) == batches(Subset(folder, order))


def test_an_epoch_takes_few_requests(server):
    stream = stream_of(server, shuffle_window=64)
    loader = FusionLoader(stream, sampler=stream.sampler(), **OPTIONS)
    assert len(list(loader)) == 5
    assert len(server.ranges()) == SHARDS
    stats = loader.stats().stream
    assert (stats.samples, stats.on_demand, stats.failures) == (len(stream), 0, 0)
    assert stats.held_bytes == 0
    assert "from URLs: 40 samples with" in loader.explain()
    assert loader.stats().read_bytes == int(stream.byte_ranges().nbytes.sum())


def test_one_process_reads_for_all_epochs_and_ends_with_the_loader(stream):
    loader = FusionLoader(stream, sampler=stream.sampler(), **OPTIONS)
    pids = set()
    for _ in range(3):
        for _ in loader:
            pids.update(child.pid for child in children_that_run(READER))
    assert len(pids) == 1
    del loader, _
    wait_until(lambda: all(map(gone, pids)))


def test_samples_in_a_cache_are_not_requested_again(server, stream):
    loader = FusionLoader(
        stream, sampler=stream.sampler(), cache=Cache("64MiB", tiers=("encoded",)), **OPTIONS
    )
    first = [hashed(batch) for batch in loader]
    asked = len(server.asked)
    loader.set_epoch(0)
    again = [hashed(batch) for batch in loader]
    assert len(server.asked) == asked
    assert [targets for _, targets in first] == [targets for _, targets in again]


def test_a_copy_on_a_disk_outlives_the_job(server, stream, tmp_path):
    def epoch():
        cache = Cache("64MiB", path=tmp_path / "copy", tiers=("encoded",))
        return batches(stream, stream.sampler(), cache=cache)

    first = epoch()
    server.asked.clear()
    assert epoch() == first
    assert not server.ranges()


def test_faults_that_pass_change_nothing(server, folder):
    stream = stream_of(server, retries=8)
    faults = itertools.cycle((500, None, "cut", None, 503, None, "reset", None, None))
    server.fault_of = lambda asked: next(faults)
    assert batches(stream, stream.sampler()) == batches(folder, list(stream.sampler()))


def test_ranks_share_a_stream(stream):
    shares = [
        batches(stream, stream.sampler(num_replicas=3, rank=rank), num_workers=1)
        for rank in range(3)
    ]
    assert sum(len(targets) for share in shares for _, targets in share) == len(stream)


def test_other_samplers_work_as_well(server, stream, folder):
    for make in (
        lambda data: DistributedSampler(data, 2, 1, seed=5),
        lambda data: torch.utils.data.RandomSampler(
            data, generator=torch.Generator().manual_seed(3)
        ),
    ):
        assert batches(stream, make(stream)) == batches(folder, make(folder))


def test_an_epoch_that_is_left_is_begun_anew(stream, folder):
    options = {**OPTIONS, "persistent_workers": True}
    loader = FusionLoader(stream, sampler=stream.sampler(), **options)
    for _ in range(3):
        next(iter(loader))
    epochs = [hashed(batch)[1] for batch in loader]
    assert sum(map(len, epochs)) == len(folder)


def test_user_code_gets_the_images_too(stream, folder):
    stream.transform.transforms.append(double)
    folder.transform.transforms.append(double)
    order = list(stream.sampler())
    assert batches(stream, stream.sampler()) == batches(folder, order)
    assert batches(stream, stream.sampler(), num_workers=0) == batches(folder, order)


def double(image):
    return image * 2

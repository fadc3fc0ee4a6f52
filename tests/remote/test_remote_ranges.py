"""Ranges of shards with remote workers: shipped, or read where the same shards are."""

import os
import shutil

import pytest
import torch
from support.faulty_server import serving
from support.images import train_transform
from support.remote_workers import assert_same, batches_of
from support.shard_writers import FAMILIES
from support.shards import shards_of
from support.tar_shards import image_shards
from support.waiting import wait_until
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, Remote
from fusionloader.data.sources import ByteRanges, EncodedImages, TarStream
from fusionloader.sharing.remote.worker.reading import (
    EncodedCache,
    FileReader,
    TooLarge,
    Unavailable,
)


def loader_of(dataset, **options):
    settings = {"batch_size": 10, "num_workers": 1, "seed": 3, "shuffle": True} | options
    generator = torch.Generator().manual_seed(7)
    return FusionLoader(dataset, generator=generator, persistent_workers=True, **settings)


def remote_to(worker, token_file, data):
    return Remote(servers=[worker.address], token_file=str(token_file), offload="all", data=data)


@pytest.fixture
def folder(image_folder):
    return ImageFolder(str(image_folder), train_transform())


def until_served(loader, folder):
    """Goes through epochs until a remote worker has made something; all are the folder's."""
    found = []

    def served():
        found.extend(batches_of(loader, 1))
        return loader.stats().remote.samples

    wait_until(served)
    with loader_of(folder) as alone:
        assert_same(found, batches_of(alone, len(found) // len(alone)))
    return loader.stats().remote


def tar_folder(folder, tmp_path):
    return FAMILIES["tar"](folder, tmp_path)(folder.transform)


@pytest.mark.parametrize("made_by", [shards_of, tar_folder])
@pytest.mark.parametrize("data", ["shared", "ship"])
@pytest.mark.few(2)
def test_ranges_are_read_there_or_sent(data, made_by, folder, start_worker, token_file, tmp_path):
    dataset = made_by(folder, tmp_path)
    with loader_of(dataset, remote=remote_to(start_worker(), token_file, data)) as loader:
        remote = until_served(loader, folder)
    assert (remote.bytes_sent / remote.samples > 1000) == (data == "ship")


def test_a_stream_is_made_here_and_remote_workers_have_no_part(
    start_worker, token_file, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(image_shards((7, 5))) as server:
        stream = TarStream(server.url("train-{000..001}.tar"), transform=train_transform())
        remote = remote_to(start_worker(), token_file, "ship")
        given = {"shuffle": None, "batch_size": 4}
        with loader_of(stream, sampler=stream.sampler(), remote=remote, **given) as loader:
            assert "remote workers have no part: samples at URLs are read by" in loader.explain()
            found = batches_of(loader, 1)
        with loader_of(stream, sampler=stream.sampler(), **given) as alone:
            assert_same(found, batches_of(alone, 1))


@pytest.fixture
def two_places(folder, start_worker, tmp_path, monkeypatch):
    """A worker, shards in a path by which each process finds a folder of its own, and its files."""
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
    ranges = shards_of(folder, tmp_path / "here").byte_ranges()
    there = [shutil.copy(file, tmp_path / "there") for file in ranges.files]
    worker = start_worker(cwd=tmp_path / "there")
    monkeypatch.chdir(tmp_path / "here")
    paths = [f"/proc/self/cwd/{os.path.basename(file)}" for file in ranges.files]
    both = ByteRanges(paths, ranges.file, ranges.offset, ranges.nbytes)
    targets = [target for _, target in folder.samples]
    return worker, EncodedImages(both, targets, transform=folder.transform), there


def test_a_worker_with_other_shards_is_sent_the_ranges(folder, two_places, token_file):
    worker, dataset, there = two_places
    for file in there:
        with open(file, "ab") as other:
            other.write(b"longer")
    with loader_of(dataset, remote=remote_to(worker, token_file, "auto")) as loader:
        remote = until_served(loader, folder)
    assert remote.bytes_sent / remote.samples > 1000


def test_a_shard_that_is_lost_there_is_read_here(folder, two_places, token_file):
    worker, dataset, there = two_places
    with loader_of(dataset, remote=remote_to(worker, token_file, "shared")) as loader:
        until_served(loader, folder)
        for file in there:
            os.unlink(file)
        wait_until(lambda: batches_of(loader, 1) and loader.stats().remote.declined)


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "shard"
    path.write_bytes(bytes(range(100)))
    return os.fsencode(path)


@pytest.mark.parametrize("cache", [None, EncodedCache(1 << 10)])
def test_a_worker_reads_ranges_of_the_file_that_is_meant(shard, cache):
    reader = FileReader(cache)
    for _ in range(2):
        assert bytes(reader.read_range(shard, 100, 30, 10)) == bytes(range(30, 40))
        assert bytes(reader.read_range(shard, 100, 40, 5)) == bytes(range(40, 45))
    assert reader.bytes_read == (30 if cache is None else 15)
    with pytest.raises(Unavailable, match="has 100 bytes here, and 101 where training is"):
        reader.read_range(shard, 101, 30, 10)
    with pytest.raises(Unavailable, match="ends before byte 105"):
        reader.read_range(shard, 100, 95, 10)
    with pytest.raises(Unavailable, match="cannot be read"):
        reader.read_range(shard + b"s", 100, 0, 10)


def test_a_range_that_is_too_large_is_left_to_the_machine_that_asked(shard, monkeypatch):
    os.truncate(shard, 1 << 30)  # a hole
    with pytest.raises(TooLarge, match="has 300000000 bytes, the most are"):
        FileReader().read_range(shard, 1 << 30, 5, 300_000_000)

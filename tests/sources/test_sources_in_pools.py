"""Archives here and at URLs, with the workers of a pool."""

import pytest
from support.batches import same_batches
from support.faulty_server import serving
from support.images import train_transform
from support.shard_writers import FAMILIES
from support.tar_shards import image_shards

from fusionloader import FusionLoader, WorkerPool
from fusionloader.data.sources import TarStream


@pytest.fixture
def stream(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(image_shards((17, 3, 8))) as server:
        yield TarStream(
            server.url("train-{000..002}.tar"), transform=train_transform(), shuffle_window=8
        )


def batches(dataset, **options):
    return list(FusionLoader(dataset, 4, seed=3, **options))


def test_archives_and_a_stream_are_served_in_turn_by_the_same_workers(stream, train_set, tmp_path):
    archives = FAMILIES["tar"](train_set, tmp_path)(train_set.transform)
    expected = batches(stream, num_workers=1), batches(archives, num_workers=1)
    with WorkerPool(2) as pool:
        loaders = [FusionLoader(each, 4, seed=3, pool=pool) for each in (stream, archives)]
        found = ([], [])
        for pair in zip(*loaders, strict=False):
            for batch, kept in zip(pair, found, strict=True):
                kept.append(batch)
    for ours, theirs in zip(found, expected, strict=True):
        assert same_batches(ours, theirs[: len(ours)]) and len(ours) == 7

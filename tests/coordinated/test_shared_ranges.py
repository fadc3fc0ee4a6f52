"""Jobs that share the preparation of ranges of shards."""

import pytest
from jobs import alone, epoch
from support.faulty_server import serving
from support.images import train_transform
from support.shard_writers import FAMILIES
from support.shards import shards_of
from support.tar_shards import image_shards

from fusionloader.data.sources import TarStream


def test_jobs_share_ranges_and_have_the_folder_s_batches(group, train_set, tmp_path):
    dataset = shards_of(train_set, tmp_path)
    jobs = group(2, dataset=dataset)
    (expected,) = alone(train_set)
    assert epoch(jobs) == [expected, expected]
    assert jobs[0].ask("stats").together


def test_jobs_share_tar_archives(group, train_set, tmp_path):
    dataset = FAMILIES["tar"](train_set, tmp_path)(train_set.transform)
    jobs = group(2, dataset=dataset)
    (expected,) = alone(train_set)
    assert epoch(jobs) == [expected, expected]
    assert jobs[0].ask("stats").together


def test_jobs_share_a_stream(group, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(image_shards((23, 17))) as server:
        stream = TarStream(server.url("train-{000..001}.tar"), transform=train_transform())
        jobs = group(2, dataset=stream, sampler=stream.sampler())
        (expected,) = alone(stream, sampler=stream.sampler())
        assert epoch(jobs) == [expected, expected]
        assert jobs[0].ask("stats").together


def test_jobs_with_other_shards_of_the_same_size_do_not_share(group, train_set, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    first = group(1, dataset=shards_of(train_set, tmp_path / "one"))
    first.take(1)
    with pytest.raises(ValueError, match="dataset"):
        group(1, dataset=shards_of(train_set, tmp_path / "two")).take(1)

"""Streams of tar shards: their indexes, their samples, and errors about bad shards."""

from __future__ import annotations

import io
import os
import resource

import numpy as np
import pytest
from PIL import Image
from support.faulty_server import serving
from support.limits import limited
from support.tar_shards import image_shards, jpeg, tar_of
from support.waiting import PATIENCE

from fusionloader.data.sources.shards.shard_paths import expand_urls
from fusionloader.data.sources.shards.tar_index import SUFFIX
from fusionloader.data.sources.shards.tar_members import (
    BadTarSample,
    CorruptTar,
    ShardError,
    UnreadableIndex,
)
from fusionloader.data.sources.streams.settings import ReadSettings
from fusionloader.data.sources.streams.shard_indexes import write_indexes
from fusionloader.data.sources.streams.tar_stream import TarStream
from fusionloader.data.sources.url_errors import UrlAbsent, UrlUnreadable

COUNTS = (5, 1, 9)
QUICK = {"retries": 1, "timeout": PATIENCE}


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(image_shards(COUNTS)) as state:
        yield state


def stream_of(server, **options):
    return TarStream(server.url("train-{000..002}.tar"), **{**QUICK, **options})


def test_samples_are_numbered_shard_by_shard(server):
    stream = stream_of(server)
    assert len(stream) == sum(COUNTS) and stream.shard_counts.tolist() == list(COUNTS)
    assert stream.targets.tolist() == list(range(15))
    for index in (0, 5, 14, -1):
        encoded, target = stream.read_encoded(index)
        assert encoded == jpeg(index % 15) and target == index % 15
        assert stream.size_hint(index) == len(encoded)


def test_torch_gets_images(server):
    image, target = stream_of(server, target_transform=str)[3]
    expected = Image.open(io.BytesIO(jpeg(3))).convert("RGB")
    assert np.array_equal(np.asarray(image), np.asarray(expected)) and target == "3"


def test_a_sample_that_is_read_alone_is_retried(server):
    stream = stream_of(server)
    server.faults.append(503)
    assert stream.read_encoded(4) == (jpeg(4), 4)
    server.faults.extend([503, 503])
    with pytest.raises(UrlUnreadable, match="503"):
        stream.read_encoded(4)


def test_an_index_is_made_once_and_cached(server):
    stream_of(server)
    asked = len(server.ranges())
    assert asked == len(COUNTS)  # each shard is smaller than a block
    server.asked.clear()
    again = stream_of(server)
    assert [each.method for each in server.asked] == ["HEAD"] * len(COUNTS)
    assert again.name(14) == "train-002.tar: 000014.jpg"


def test_an_index_beside_the_shard_is_taken(server, caplog):
    from fusionloader.data.sources.shards.tar_index import TarIndex
    from fusionloader.data.sources.streams.shard_indexes import cached_index_path

    stream_of(server)
    for name in list(server.files):
        path = cached_index_path(server.url(name))
        server.files[name + SUFFIX] = path.read_bytes()
        path.unlink()
    server.asked.clear()
    assert stream_of(server, index="beside").targets.tolist() == list(range(15))
    assert not server.ranges()
    wrong = TarIndex.from_members([], 10, 20)
    server.files["train-001.tar" + SUFFIX] = wrong.to_bytes()
    cached_index_path(server.url("train-001.tar")).unlink()
    with pytest.raises(UnreadableIndex, match="is the index of a shard of 10 bytes"):
        stream_of(server, index="beside")
    assert stream_of(server).targets.tolist() == list(range(15))
    assert "is the index of a shard of 10 bytes" in caplog.text


@pytest.mark.parametrize("beside", [False, True])
def test_an_index_without_the_contents_of_the_targets_is_made_again(server, beside):
    from fusionloader.data.sources.streams.shard_indexes import cached_index_path

    url = server.url("labels.tar")
    server.files["labels.tar"] = tar_of([("1.jpg", jpeg(1)), ("1.label", b"7")])
    with pytest.raises(BadTarSample, match="no member 'cls'"):
        TarStream(url, **QUICK)
    if beside:
        server.files["labels.tar" + SUFFIX] = cached_index_path(url).read_bytes()
        cached_index_path(url).unlink()
        with pytest.raises(BadTarSample, match="write the index again with --target"):
            TarStream(url, target="label", index="beside", **QUICK)
    server.asked.clear()
    for _ in range(2):
        assert TarStream(url, target="label", **QUICK).targets.tolist() == [7]
    assert len(server.ranges()) == 1  # the new index is cached


def test_an_index_that_should_be_beside_the_shard_is_missed(server):
    with pytest.raises(UnreadableIndex, match="python -m fusionloader index http"):
        stream_of(server, index="beside")


def test_an_index_that_has_no_room_leaves_nothing_behind(server):
    from fusionloader.data.sources.streams.shard_indexes import cached_index_path

    with limited(resource.RLIMIT_FSIZE, 10):
        assert len(stream_of(server)) == 15
    assert not os.listdir(cached_index_path(server.url("train-000.tar")).parent)


def test_a_damaged_index_in_the_cache_is_made_again(server):
    from fusionloader.data.sources.streams.shard_indexes import cached_index_path

    stream_of(server)
    cached_index_path(server.url("train-000.tar")).write_bytes(b"damaged")
    assert len(stream_of(server)) == 15


def test_an_index_of_another_version_beside_a_shard_is_named_and_in_the_cache_made_again(
    server, monkeypatch
):
    from fusionloader.data.sources.shards import tar_index
    from fusionloader.data.sources.streams.shard_indexes import cached_index_path

    with monkeypatch.context() as patch:
        patch.setattr(tar_index, "VERSION", 99)
        stream_of(server)
        other = {name: cached_index_path(server.url(name)).read_bytes() for name in server.files}
    assert stream_of(server).targets.tolist() == list(range(15))
    for name, data in other.items():
        server.files[name + SUFFIX] = data
        cached_index_path(server.url(name)).unlink()
    with pytest.raises(UnreadableIndex, match=r"train-00\d.tar.* version 99, .* write it again"):
        stream_of(server, index="beside")


def test_a_shard_that_was_replaced_is_indexed_again(server):
    stream_of(server)
    server.files["train-001.tar"] = image_shards((3,))["train-000.tar"]
    assert stream_of(server).shard_counts.tolist() == [5, 3, 9]


def test_indexes_are_written_beside_shards(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, data in image_shards(COUNTS).items():
        (tmp_path / name).write_bytes(data)
    urls = [f"file://{tmp_path}/train-{number:03d}.tar" for number in range(3)]
    told = []
    write_indexes(urls, ReadSettings(), frozenset((b"cls",)), told.append)
    assert sorted(told) == urls
    stream = TarStream(f"file://{tmp_path}/train-{{000..002}}.tar", index="beside")
    assert stream.targets.tolist() == list(range(15))
    assert stream.read_encoded(6) == (jpeg(6), 6)


def test_a_shard_larger_than_a_block_is_read_in_blocks(server, monkeypatch):
    from fusionloader.data.sources.streams import shard_indexes

    monkeypatch.setattr(shard_indexes, "_BLOCK", 1500)
    assert stream_of(server).targets.tolist() == list(range(15))
    assert max(each.stop - each.start for each in server.ranges()) <= 1500


def test_a_block_without_a_header_is_not_read(server, monkeypatch):
    from fusionloader.data.sources.streams import shard_indexes

    monkeypatch.setattr(shard_indexes, "_BLOCK", 512)
    large = tar_of([("1.jpg", bytes(200_000)), ("1.cls", b"1")])
    server.files["large.tar"] = large
    TarStream(server.url("large.tar"), **QUICK)
    assert sum(each.stop - each.start for each in server.ranges()) < len(large) / 10


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (b"", CorruptTar, "train-001.tar: the shard is empty"),
        (image_shards((2,))["train-000.tar"][:1600], CorruptTar, "train-001.tar, byte .* cut off"),
        (
            tar_of([("1.jpg", b"i")]),
            BadTarSample,
            "train-001.tar: the sample '1' .* no member 'cls'",
        ),
        (
            tar_of([("1.jpg", b"i"), ("1.jpg", b"j"), ("1.cls", b"1")]),
            BadTarSample,
            "train-001.tar: the sample '1' has two members 'jpg'",
        ),
        (tar_of([]), ShardError, "train-001.tar: the archive is empty"),
    ],
)
def test_a_bad_shard_is_named(server, data, error, message):
    server.files["train-001.tar"] = data
    with pytest.raises(error, match=message):
        stream_of(server)


def test_a_missing_shard_is_named(server):
    del server.files["train-001.tar"]
    with pytest.raises(UrlAbsent, match="train-001.tar.*check the URL"):
        stream_of(server)


def test_too_large_a_window_for_what_is_read_ahead_is_warned_of(server):
    with pytest.warns(UserWarning, match="Make read_ahead larger"):
        server.files["large.tar"] = tar_of(
            [
                (f"{n}.{kind}", bytes(4 << 20 if kind == "jpg" else 1))
                for n in range(2)
                for kind in ("jpg", "txt")
            ]
        )
        TarStream(server.url("large.tar"), target=None, read_ahead="1MiB", **QUICK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle_window": 0}, "shuffle_window should be at least 1"),
        ({"read_ahead": "1KiB"}, "read_ahead should be at least"),
        ({"requests_in_flight": 0}, "requests_in_flight should be at least 1"),
        ({"retries": -1}, "retries should be at least 0"),
        ({"timeout": 0}, "timeout should be seconds above 0"),
        ({"index": "never"}, 'index should be "auto" or "beside"'),
        ({"image": ""}, "extensions with semicolons"),
    ],
)
def test_arguments_out_of_range_are_refused(server, options, message):
    with pytest.raises(ValueError, match=message):
        stream_of(server, **options)


def test_local_paths_are_no_stream(tmp_path):
    with pytest.raises(ValueError, match="is no URL"):
        TarStream(str(tmp_path / "a.tar"))


# ---- patterns ----------------------------------------------------------------------------------


def test_braces_stand_for_shards():
    assert expand_urls("s3://b/t-{008..011}.tar") == [
        f"s3://b/t-{number:03d}.tar" for number in range(8, 12)
    ]
    assert expand_urls(["a{1..2}-{x,y}", "b"]) == ["a1-x", "a1-y", "a2-x", "a2-y", "b"]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("t-{0..3.tar", "braces that are not closed"),
        ("t-{{0..3}}.tar", "braces that are not closed, or within others"),
        ("t-{3..0}.tar", "counts from 3 down"),
        (["a", "a"], "names a shard twice: a"),
        ([], "names no shard"),
    ],
)
def test_patterns_that_stand_for_nothing_are_refused(pattern, message):
    with pytest.raises(ValueError, match=message):
        expand_urls(pattern)

"""Streams from S3, through s3fs from moto's server."""

from __future__ import annotations

import pytest
from support.s3_server import BUCKET, s3_with
from support.streams import brought, reading
from support.tar_shards import image_shards, jpeg

from fusionloader.cache.range_reading import ShardChanged
from fusionloader.data.sources import TarStream
from fusionloader.data.sources.streams.settings import ReadSettings
from fusionloader.data.sources.streams.shard_indexes import write_indexes
from fusionloader.data.sources.url_errors import UrlAbsent, UrlDenied

COUNT = 30
URLS = f"s3://{BUCKET}/train-{{000..001}}.tar"


@pytest.fixture(scope="module")
def server():
    with s3_with(image_shards((20, 10))) as running:
        yield running


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    """An empty cache, and no credentials of the user."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def test_a_stream_is_read_ahead_from_s3(server):
    stream = TarStream(URLS, storage_options=server.storage_options)
    assert stream.targets.tolist() == list(range(COUNT))
    with reading(stream, storage_options=server.storage_options) as (reader, fetcher):
        reader.announce(range(COUNT))
        found = {}
        for item in range(COUNT):
            found.update(brought(fetcher, [item]))
        assert found == {item: jpeg(item) for item in range(COUNT)}
        assert reader.stats().requests <= 4  # two ranges, and what the shards are now


def test_indexes_beside_shards_in_a_bucket_are_found(server):
    settings = ReadSettings(storage_options=server.storage_options)
    urls = [f"s3://{BUCKET}/train-{number:03d}.tar" for number in range(2)]
    write_indexes(urls, settings, frozenset((b"cls",)))
    stream = TarStream(URLS, storage_options=server.storage_options, index="beside")
    assert len(stream) == COUNT and stream.name(25) == "train-001.tar: 000025.jpg"


def test_an_object_that_was_replaced_is_found_out(server):
    name = f"s3://{BUCKET}/changed.tar"
    client = server.client()
    client.put_object(Bucket=BUCKET, Key="changed.tar", Body=image_shards((4,))["train-000.tar"])
    stream = TarStream(name, storage_options=server.storage_options)
    other = image_shards((1, 4))["train-001.tar"]
    client.put_object(Bucket=BUCKET, Key="changed.tar", Body=other)
    with (
        reading(stream, storage_options=server.storage_options) as (_, fetcher),
        pytest.raises(ShardChanged, match="is not the file that was indexed"),
    ):
        fetcher.read(0)


def test_without_credentials_the_error_says_where_they_go(server):
    options = {"endpoint_url": server.endpoint, "client_kwargs": {"region_name": "us-east-1"}}
    with pytest.raises(UrlDenied, match="storage_options={'key': ..., 'secret': ...}, or {'anon'"):
        TarStream(URLS, storage_options=options)


def test_a_missing_object_is_named(server):
    with pytest.raises(UrlAbsent, match=f"s3://{BUCKET}/train-009.tar"):
        TarStream(f"s3://{BUCKET}/train-009.tar", storage_options=server.storage_options)

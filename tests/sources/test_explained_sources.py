"""The text of explain() for each source: number of samples, their place, how they are read."""

import os

import numpy as np
import pytest
from support.images import eval_transform
from support.shard_writers import FAMILIES
from support.tar_shards import image_shards
from torch.utils.data import Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.data.sources import ByteRanges, EncodedImages, TarStream
from fusionloader.options.cache_settings import Cache

SAID = {
    "hugging_face": "HuggingFaceImages: read 40 rows of a Hugging Face dataset in 3 files: native",
    "hugging_face_paths": "read 40 rows of a Hugging Face dataset in 40 files: native",
    "arrow": "ArrowImages: read 40 values of 3 Arrow files: native",
    "parquet": "ParquetImages: read 40 values of 3 Parquet files, unpacked in {}/unpacked: native",
    "mds_zstd": "MDSImages: read 40 samples of {} shards, unpacked in",
    "litdata": "LitDataImages: read 40 samples of 3 chunks: native",
    "lmdb": "LMDBImages: read 40 values of a database: native",
    "tar": "TarFolder: read 40 members of 3 archives, by their indexes: native",
}
AHEAD = "URLs are read ahead by a process, in the sampler's order"
ONE_BY_ONE = "URLs are read with a request for each sample: "


@pytest.mark.parametrize("family", SAID)
def test_shards_say_what_is_read_of_how_many_files(family, image_folder, tmp_path):
    dataset = FAMILIES[family](ImageFolder(str(image_folder)), tmp_path)(eval_transform())
    shards = len(dataset.byte_ranges().files)
    where = shards if family == "mds_zstd" else tmp_path
    assert SAID[family].format(where) in FusionLoader(dataset, num_workers=1).explain()


def test_shards_that_are_not_compressed_are_unpacked_nowhere(image_folder, tmp_path):
    dataset = FAMILIES["mds"](ImageFolder(str(image_folder)), tmp_path)(eval_transform())
    assert "unpacked" not in FusionLoader(dataset).explain()


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for name, data in image_shards((8, 1)).items():
        (folder / name).write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        yield f"file://{folder}/train-{{000..001}}.tar"


def explained(dataset, **options):
    return FusionLoader(dataset, 3, **{"num_workers": 1, **options}).explain().splitlines()


def test_a_stream_says_how_its_urls_are_read(url):
    stream = TarStream(url, transform=eval_transform())
    lines = explained(stream, sampler=stream.sampler())
    assert lines[1] == "TarStream: read 9 members of 2 archives at URLs, by their indexes: native"
    assert AHEAD in lines and AHEAD in explained(stream) and AHEAD in explained(Subset(stream, [2]))


def test_a_shuffled_stream_says_which_sampler_reads_neighbours_together(url):
    stream = TarStream(url, transform=eval_transform())
    better = f"{AHEAD}; with sampler=dataset.sampler() neighbours come with one request"
    assert better in explained(stream, shuffle=True)


def test_urls_that_are_read_one_by_one_say_why(url):
    stream = TarStream(url, transform=eval_transform())
    assert f"{ONE_BY_ONE}there are no workers (num_workers=0)" in explained(stream, num_workers=0)
    steps = [lambda image: image, transforms.Resize((32, 32)), transforms.ToTensor()]
    own_code = TarStream(url, transform=transforms.Compose(steps))
    assert f"{ONE_BY_ONE}Python makes the samples" in explained(own_code)


def ranges_at_urls(url):
    ranges = TarStream(url).byte_ranges()
    return ByteRanges.of_packed(ranges.files, ranges.packed, ranges.nbytes)


def test_ranges_of_urls_say_how_they_are_read(url):
    images = EncodedImages(ranges_at_urls(url), np.zeros(9, int), transform=eval_transform())
    lines = explained(images)
    assert lines[1] == "EncodedImages: read 9 ranges of 2 URLs: native" and AHEAD in lines


class FetchedOtherwise(EncodedImages):
    def remote_files(self):
        return super().remote_files()


def test_a_fetcher_of_its_own_is_said_to_read(url):
    images = FetchedOtherwise(ranges_at_urls(url), np.zeros(9, int), transform=eval_transform())
    assert "URLs are read by the dataset's own remote_files()" in explained(images)


def test_cache_servers_are_not_said_to_keep_what_is_at_urls(url, tmp_path):
    token = tmp_path / "token"
    token.write_text("a secret of these two machines")
    os.chmod(token, 0o600)
    cache = Cache("1MiB", servers=["127.0.0.1:9", "127.0.0.2:9"], token_file=str(token))
    lines = explained(TarStream(url, transform=eval_transform()), cache=cache)
    assert (
        "no cache servers: samples are at URLs, and each machine reads and keeps its own" in lines
    )
    assert not any(line.startswith("cache servers:") for line in lines)

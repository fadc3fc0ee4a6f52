"""Ranges at URLs, which real workers read by HTTP."""

from dataclasses import dataclass

import pytest
import torch
from support.batches import same_batches
from support.images import train_transform
from support.notes import said
from support.range_server import range_server
from support.shards import shards_of
from test_decoded_cache import kinds_of_files
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder

from fusionloader import Cache, FusionLoader, GpuWorker, Remote, WorkerPool
from fusionloader.cache.remote_files import BroughtFile
from fusionloader.data.sources import ByteRanges, EncodedImages, UrlUnreadable

COUNT = 24


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """JPEGs of several kinds, and some that Pillow decodes."""
    return kinds_of_files(tmp_path_factory.mktemp("kinds"))


class Served:
    """A folder, the same at URLs, and the server."""

    def __init__(self, root, tmp_path, url, requests):
        self.folder = ImageFolder(str(root), train_transform())
        self.local = shards_of(self.folder, tmp_path)
        self.requests, self._url = requests, url

    def remote(self, kind=EncodedImages, names=None):
        ranges = self.local.byte_ranges()
        urls = names or [f"{self._url}/train-{number}.bin" for number in range(3)]
        urls = [url if "://" in url else f"{self._url}/{url}" for url in urls]
        there = ByteRanges(urls, ranges.file, ranges.offset, ranges.nbytes)
        return kind(there, self.local.targets, transform=self.folder.transform)


@pytest.fixture
def served(root, tmp_path):
    with range_server(tmp_path) as (url, requests):
        yield Served(root, tmp_path, url, requests)


def epochs(dataset, count=1, **options):
    torch.manual_seed(2)
    settings = {"batch_size": 5, "num_workers": 2, "seed": 3, "shuffle": True} | options
    loader = FusionLoader(dataset, **settings)
    return [batch for _ in range(count) for batch in loader], loader


@pytest.mark.parametrize("options", [{}, {"multiprocessing_context": "spawn"}, {"num_workers": 0}])
@pytest.mark.few(1)
def test_batches_are_those_of_the_folder(served, options):
    ours, loader = epochs(served.remote(), **options)
    assert same_batches(ours, epochs(served.folder, **options)[0])
    assert "ranges of 3 URLs: native" in loader.explain()


def test_cached_samples_are_not_requested_again(served):
    reference, _ = epochs(served.folder, 3)
    ours, loader = epochs(served.remote(), 3, cache=Cache("64MiB", tiers=("encoded",)))
    assert same_batches(ours, reference)
    found = loader.stats().cache
    assert (found.misses, found.hits) == (COUNT, 2 * COUNT)
    assert len(served.requests) == 3  # one a shard, in the first epoch: they are read ahead


def test_subsets_and_pools_ask_for_their_samples(served):
    chosen = [5, 3, 19, 5]
    expected, _ = epochs(Subset(served.folder, chosen))
    with WorkerPool(2) as pool:
        ours, _ = epochs(Subset(served.remote(), chosen), num_workers=0, pool=pool)
    assert same_batches(ours, expected)


def test_a_url_that_is_not_there_is_the_error_of_its_samples(served):
    remote = served.remote(names=["train-0.bin", "404", "train-2.bin"])
    with pytest.raises(UrlUnreadable, match="/404.*check the URL") as caught:
        epochs(remote)
    text = said(caught.value)
    assert "(404: byte" in text


@pytest.mark.parametrize("on_error", ["skip", "substitute"])
@pytest.mark.few(1)
def test_an_epoch_goes_on_without_the_samples_of_a_url(served, on_error, caplog):
    remote = served.remote(names=["train-0.bin", "503", "train-2.bin"])
    options = {"batch_size": 1, "shuffle": False}
    expected, _ = epochs(served.folder, **options)
    found, _ = epochs(remote, on_error=on_error, **options)
    kept = [index for index in range(COUNT) if index % 3 != 1]
    ours = found if on_error == "skip" else [found[index] for index in kept]
    assert same_batches(ours, [expected[index] for index in kept])
    assert "503" in caplog.text and len(found) == (len(kept) if on_error == "skip" else COUNT)


@dataclass(frozen=True)
class Flaky:
    """Brings no sample of a mini-batch the first time, and reads each one on demand."""

    inner: object

    def open(self, identity_fd, range_of):
        return FlakyFetcher(self.inner.open(identity_fd, range_of))


class FlakyFetcher:
    def __init__(self, inner):
        self.inner = inner

    def bring(self, items):
        return [BroughtFile(item, 0, 0, self.inner.read(item), False, 0.0) for item in items[1::2]]

    def read(self, item):
        return self.inner.read(item)


class FlakyImages(EncodedImages):
    def remote_files(self):
        return Flaky(super().remote_files())


def test_what_was_not_brought_is_read_and_decoded_natively(served):
    ours, loader = epochs(served.remote(FlakyImages))
    reference, theirs = epochs(served.folder)
    assert same_batches(ours, reference)
    assert loader.stats().pillow_samples == theirs.stats().pillow_samples


class Nowhere(EncodedImages):
    def remote_files(self):
        return None


def test_a_dataset_of_urls_says_what_brings_them(served):
    with pytest.raises(ValueError, match=r"Nowhere.remote_files\(\) is None"):
        epochs(served.remote(Nowhere))


class Short(FlakyFetcher):
    def bring(self, items):
        return []

    def read(self, item):
        return self.inner.read(item)[1:]


@dataclass(frozen=True)
class ShortFiles(Flaky):
    def open(self, identity_fd, range_of):
        return Short(self.inner.open(identity_fd, range_of))


class ShortImages(EncodedImages):
    def remote_files(self):
        return ShortFiles(super().remote_files())


def test_fewer_bytes_than_a_range_has_are_no_sample(served):
    with pytest.raises(OSError, match=r"gave \d+ bytes for \d+ from byte 15: index it again"):
        epochs(served.remote(ShortImages), batch_size=1, shuffle=False)


def test_other_machines_and_gpu_workers_have_no_part(served, tmp_path):
    (tmp_path / "token").write_text("token")
    remote = Remote(servers=["127.0.0.1:9"], token_file=str(tmp_path / "token"))
    loader = FusionLoader(served.remote(), 5, num_workers=1, remote=remote)
    assert "remote workers have no part: samples at URLs are read by this" in loader.explain()
    gpu = GpuWorker(device="cpu", sharing="spatial")
    loader = FusionLoader(served.remote(), 5, num_workers=1, gpu_worker=gpu)
    assert "no GPU worker: the images are at URLs, which CPU workers read" in loader.explain()

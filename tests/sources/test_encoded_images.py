"""The dataset of encoded images in ranges, as torch's own DataLoader sees it."""

import pickle

import numpy as np
import pytest
import torch
from support.batches import same_batches
from support.range_server import range_server
from support.shards import shards_of
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.data.sources import ByteRanges, EncodedImages, UrlUnreadable


@pytest.fixture
def ranges_set(eval_set, tmp_path):
    return shards_of(eval_set, tmp_path)


def test_torch_gets_the_samples_of_the_folder(eval_set, ranges_set):
    assert same_batches(
        DataLoader(eval_set, batch_size=8), DataLoader(ranges_set, batch_size=8, num_workers=1)
    )


def test_without_transforms_samples_are_images(image_folder, tmp_path):
    folder = ImageFolder(str(image_folder))
    dataset = shards_of(folder, tmp_path, target_transform=lambda target: target + 10)
    image, target = dataset[3]
    assert image.tobytes() == folder[3][0].tobytes() and target == folder[3][1] + 10


def test_bytes_and_sizes_are_those_of_the_files(eval_set, ranges_set):
    for index, (path, target) in enumerate(eval_set.samples):
        with open(path, "rb") as file:
            data = file.read()
        assert ranges_set.read_encoded(index) == (data, target)
        assert ranges_set.size_hint(index) == len(data)


def test_a_dataset_may_have_more_files_than_imagenet(eval_set, ranges_set):
    files, ranges = 1_300_000, ranges_set.byte_ranges()
    many = ByteRanges(
        [ranges.files[0]] * (files - len(ranges.files)) + [*ranges.files],
        ranges.file + np.uint32(files - len(ranges.files)),
        ranges.offset,
        ranges.nbytes,
        stamps=np.concatenate([ranges.stamps[[0] * (files - len(ranges.files))], ranges.stamps]),
    )
    dataset = EncodedImages(many, ranges_set.targets, transform=ranges_set.transform)
    loader = FusionLoader(dataset, 8, num_workers=1)
    assert "native" in str(loader.explain())
    assert same_batches(loader, DataLoader(eval_set, batch_size=8))


def test_indices_count_from_the_end_and_end(ranges_set):
    assert ranges_set.read_encoded(-1) == ranges_set.read_encoded(len(ranges_set) - 1)
    for index in (len(ranges_set), -len(ranges_set) - 1):
        with pytest.raises(IndexError, match=f"40 samples and no index {index}"):
            ranges_set[index]


def test_samples_have_names(ranges_set):
    assert ranges_set.name(4) == "train-1.bin: class0/008.jpg"
    unnamed = EncodedImages(ranges_set.byte_ranges(), ranges_set.targets)
    assert unnamed.name(0) == "train-0.bin: byte 15"


def test_a_pickled_dataset_is_the_same(ranges_set):
    again = pickle.loads(pickle.dumps(ranges_set))
    assert torch.equal(again[5][0], ranges_set[5][0])
    assert again.byte_ranges().at(5) == ranges_set.byte_ranges().at(5)


@pytest.mark.parametrize(
    ("targets", "kept"),
    [
        ([3, 1], np.array([3, 1])),
        (np.array([3, 1], np.uint8), np.array([3, 1])),
        ([3.5, 1.0], [3.5, 1.0]),
        (["cat", "dog"], ["cat", "dog"]),
        ([True, False], [True, False]),
    ],
)
def test_integers_become_an_array_and_others_stay(targets, kept):
    dataset = EncodedImages(ByteRanges(["s3://a"], [0, 0], [0, 1], [1, 1]), targets)
    assert type(dataset.targets) is type(kept) and list(dataset.targets) == list(kept)
    assert dataset.ranged.has_integers == isinstance(kept, np.ndarray)


def test_other_targets_are_given_as_they_are(eval_set, tmp_path):
    shards = shards_of(eval_set, tmp_path)
    dataset = EncodedImages(shards.byte_ranges(), [f"word {i}" for i in range(len(shards))])
    assert dataset[7][1] == "word 7"


def test_as_many_targets_as_ranges_are_needed():
    with pytest.raises(ValueError, match="1 samples have 2 targets"):
        EncodedImages(ByteRanges(["s3://a"], [0], [0], [1]), [1, 2])


@pytest.fixture
def server(tmp_path):
    with range_server(tmp_path) as (url, _):
        yield url


def test_ranges_of_urls_are_read(eval_set, tmp_path, server):
    local = shards_of(eval_set, tmp_path)
    ranges = local.byte_ranges()
    urls = [f"{server}/train-{number}.bin" for number in range(3)]
    remote = EncodedImages(
        ByteRanges(urls, ranges.file, ranges.offset, ranges.nbytes), local.targets
    )
    assert [remote.read_encoded(i) for i in range(40)] == [local.read_encoded(i) for i in range(40)]


@pytest.mark.parametrize(
    ("status", "remedy"),
    [(403, "storage_options"), (404, "check the URL"), (500, "try again"), (503, "try again")],
)
def test_what_a_server_refuses_is_named_with_its_status(server, status, remedy):
    url = f"{server}/{status}"
    dataset = EncodedImages(ByteRanges([url], [0], [10], [5]), [0])
    with pytest.raises(UrlUnreadable, match=f"{url}.*bytes 10 to 14.*byte 10.*{remedy}"):
        dataset[0]


def test_a_server_that_is_not_there_is_named():
    dataset = EncodedImages(ByteRanges(["http://127.0.0.1:9/a"], [0], [10], [5]), [0])
    with pytest.raises(UrlUnreadable, match=r"127\.0\.0\.1:9.*see that the server answers"):
        dataset[0]


def test_a_file_system_that_is_not_installed_is_named():
    dataset = EncodedImages(ByteRanges(["nowhere://a"], [0], [0], [5]), [0])
    with pytest.raises(UrlUnreadable, match="nowhere://a"):
        dataset[0]


def test_a_url_that_ends_early_has_changed(tmp_path, server):
    (tmp_path / "short").write_bytes(bytes(12))
    dataset = EncodedImages(ByteRanges([f"{server}/short"], [0], [10], [5]), [0])
    with pytest.raises(UrlUnreadable, match="2 bytes instead of 5.*may have been replaced"):
        dataset[0]

"""Loaders over ranges of shards: bit for bit the batches of an image folder of the same files."""

import multiprocessing

import numpy as np
import pytest
import torch
from PIL import Image
from support.batches import same_batches
from support.images import NORMALIZE, train_transform
from support.shards import shards_of
from test_decoded_cache import kinds_of_files
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import Cache, DecodedCache, FusionLoader, WorkerPool
from fusionloader.data.sources import EncodedImages

COUNT = 24
_CROP = [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip()]


def inverted(tensor):
    return 1 - tensor


def on_images(image):
    return transforms.functional.to_tensor(image.rotate(10).resize((32, 32)))


TAIL = transforms.Compose([*_CROP, transforms.ToTensor(), transforms.Lambda(inverted)])
USER_CODE = transforms.Compose([transforms.Lambda(on_images)])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """JPEGs of several kinds, PNGs, CMYK and damaged ones: some of them are for Pillow."""
    return kinds_of_files(tmp_path_factory.mktemp("kinds"))


@pytest.fixture
def both(root, tmp_path):
    """Makes the folder and the ranges of its files."""

    def make(transform=None, **options):
        folder = ImageFolder(str(root), transform or train_transform(), **options)
        return folder, shards_of(folder, tmp_path, **options)

    return make


def epochs(dataset, count=2, **options):
    torch.manual_seed(2)
    settings = {"batch_size": 5, "num_workers": 2, "seed": 3, "shuffle": True} | options
    loader = FusionLoader(dataset, **settings)
    return [list(loader) for _ in range(count)], loader


def assert_same(ours, reference):
    assert all(same_batches(a, b) for a, b in zip(ours, reference, strict=True))


def assert_both_same(datasets, **options):
    (reference, _), (ours, loader) = (epochs(dataset, **options) for dataset in datasets)
    assert_same(ours, reference)
    return loader


@pytest.mark.few(1)
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_native_workers_make_the_same(both, method):
    loader = assert_both_same(both(), multiprocessing_context=method)
    assert loader.stats().pillow_samples and "ranges of 3 files: native" in loader.explain()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 0},
        {"decode": "fast"},
        {"strict": False},
        {"augment_per": "tiny_batch"},
        {"persistent_workers": True},
        {"tiny_batch_size": 1, "batch_size": 7},
    ],
)
def test_options_make_no_difference(both, options):
    assert_both_same(both(), **options)


@pytest.mark.few(2)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transform", [TAIL, USER_CODE])
def test_code_behind_the_plan_gets_the_same_images(both, transform, workers):
    assert_both_same(both(transform), num_workers=workers)


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", [0, 2])
def test_transforms_of_targets_run(both, workers):
    assert_both_same(both(target_transform=float), num_workers=workers)


def listed(samples):
    return torch.stack([image for image, _ in samples]), [target for _, target in samples]


def test_a_custom_collate_function_gets_the_same_samples(both):
    folder, ranges = both(transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()]))
    theirs = list(DataLoader(ranges, 5, collate_fn=listed))
    assert same_batches(list(FusionLoader(ranges, 5, collate_fn=listed, num_workers=2)), theirs)
    assert same_batches(list(DataLoader(folder, 5, collate_fn=listed)), theirs)


class Opened(EncodedImages):
    """A dataset whose samples are made by user code."""

    def __getitem__(self, index):
        image, target = super().__getitem__(index)
        return {"image": image, "target": target + 100}


def test_a_custom_getitem_is_user_code(both):
    _, ranges = both()
    custom = Opened(ranges.byte_ranges(), ranges.targets, transform=on_images)
    (ours,), loader = epochs(custom, 1, shuffle=False)
    assert same_batches(ours, list(DataLoader(custom, 5)))
    assert "custom __getitem__" in loader.explain()


def test_subsets_of_subsets_are_read_at_their_places(both):
    chosen = [17, 3, 3, 8, 0, 11, 19, 4]
    subsets = [Subset(Subset(each, list(range(19, -1, -1))), chosen) for each in both()]
    loader = assert_both_same(subsets, shuffle=False)
    for subset in subsets:
        subset.indices = chosen[::-1]  # the next epoch's
    torch.manual_seed(2)
    loader.set_epoch(0)
    assert same_batches(list(loader), epochs(subsets[0], 1, shuffle=False)[0][0])


def test_ranks_have_their_parts(both):
    folder, ranges = both()
    for rank in range(2):
        samplers = [DistributedSampler(each, 2, rank, seed=4) for each in (folder, ranges)]
        (theirs, _), (ours, _) = (
            epochs(each, shuffle=False, sampler=sampler)
            for each, sampler in zip((folder, ranges), samplers, strict=True)
        )
        assert_same(ours, theirs)


def test_workers_of_a_pool_serve_folders_and_ranges_in_turn(both):
    datasets = both()
    reference = [epochs(each)[0] for each in datasets]
    with WorkerPool(2) as pool:
        for _ in range(2):
            for dataset, expected in zip(datasets, reference, strict=True):
                assert_same(epochs(dataset, num_workers=0, pool=pool)[0], expected)


def test_an_epoch_is_resumed_in_its_middle(both):
    folder, ranges = both()
    (expected,), _ = epochs(folder, 1)
    torch.manual_seed(2)
    options = {"batch_size": 5, "num_workers": 2, "seed": 3, "shuffle": True}
    first = FusionLoader(ranges, **options)
    iterator = iter(first)
    begun = [next(iterator) for _ in range(2)]
    state = first.state_dict()
    del iterator
    second = FusionLoader(ranges, **options)
    second.load_state_dict(state)
    assert same_batches(begun + list(second), expected)


TIERS = [("encoded",), ("decoded",), ("index", "encoded", "decoded")]


@pytest.mark.parametrize("tiers", TIERS)
@pytest.mark.few(1)
def test_cached_files_are_not_read_again(both, tiers):
    folder, ranges = both()
    reference, _ = epochs(folder, 3)
    ours, loader = epochs(ranges, 3, cache=Cache("64MiB", tiers=tiers))
    assert_same(ours, reference)
    found = loader.stats().cache
    assert (found.misses, found.hits, found.epoch_misses) == (COUNT, 2 * COUNT, 0)


def test_two_loaders_share_the_cache_of_the_same_ranges(both):
    _, ranges = both()
    cache = Cache("64MiB", tiers=("encoded",))
    _, first = epochs(ranges, 1, cache=cache)
    _, second = epochs(ranges, 1, cache=cache)
    _, other = epochs(Subset(ranges, range(10)), 1, cache=cache)
    found = [each.stats().cache.epoch_misses for each in (first, second, other)]
    assert found == [COUNT, 0, 10]


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{}, {"cache": DecodedCache(200 << 10)}])
def test_an_entry_index_is_made_and_used(both, options):
    folder, ranges = both()
    reference, their_loader = epochs(folder, 3, jpeg_index="auto", **options)
    ours, loader = epochs(ranges, 3, jpeg_index="auto", **options)
    assert_same(ours, reference)
    found = loader.stats().jpeg_index
    assert found.images and (options or found == their_loader.stats().jpeg_index)


def test_a_saved_index_is_for_the_same_ranges_alone(both, tmp_path, caplog):
    _, ranges = both()
    saved = tmp_path / "index"
    reference, first = epochs(ranges, 2, jpeg_index=saved)
    ours, second = epochs(ranges, 2, jpeg_index=saved)
    assert_same(ours, reference)
    assert second.stats().jpeg_index == first.stats().jpeg_index
    epochs(Subset(ranges, range(COUNT - 1)), 1, jpeg_index=saved)
    assert "was saved for other files" in caplog.text


def test_a_new_list_of_targets_is_what_the_next_epoch_has(both):
    _, ranges = both()
    _, loader = epochs(ranges, 1, shuffle=False)
    ranges.targets = list(range(COUNT))
    assert torch.cat([targets for _, targets in loader]).tolist() == list(range(COUNT))


def relabel(worker):
    dataset = torch.utils.data.get_worker_info().dataset
    dataset.targets = [7] * COUNT


def test_worker_init_fn_may_change_the_targets(both):
    _, ranges = both()
    (batches,), _ = epochs(ranges, 1, worker_init_fn=relabel)
    assert {int(target) for _, targets in batches for target in targets} == {7}


def test_words_are_targets_of_python_workers(both):
    folder, ranges = both()
    words = [f"word {index}" for index in range(COUNT)]
    named = EncodedImages(ranges.byte_ranges(), words, transform=folder.transform)
    (ours,), _ = epochs(named, 1, shuffle=False)
    (theirs,), _ = epochs(folder, 1, shuffle=False)
    assert same_batches([images for images, _ in ours], [images for images, _ in theirs])
    assert [word for _, group in ours for word in group] == words


def test_a_plan_of_eight_bit_results_is_the_same(both):
    assert_both_same(both(transforms.Compose([*_CROP, transforms.PILToTensor()])))
    steps = [*_CROP, transforms.RandAugment(), transforms.ToTensor()]
    assert_both_same(both(transforms.Compose([*steps, transforms.Normalize(*NORMALIZE)])))


def test_images_of_a_dataset_without_transforms_go_through_user_code(both):
    _, ranges = both()
    ranges.transform = None
    image, target = next(iter(FusionLoader(ranges, batch_size=None)))
    assert isinstance(image, Image.Image) and target == ranges.targets[0]


def test_a_dataset_whose_arrays_are_shared_is_sent_to_processes(both):
    _, ranges = both()
    epochs(ranges, 1)
    context = multiprocessing.get_context("forkserver")
    with context.Pool(1) as pool:
        assert pool.apply(_offsets, (ranges,)) == ranges.byte_ranges().offset.tolist()


def _offsets(dataset):
    return np.asarray(dataset.byte_ranges().offset).tolist()

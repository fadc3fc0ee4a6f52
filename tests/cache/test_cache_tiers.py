"""A cache of several tiers: the same batches, exact hits, an exact budget."""

import contextlib
import os
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from support.batches import same_batches
from support.campaigns import SEED
from support.images import train_transform
from support.raised_at import CALLS, Steps, needs_returns, sampled
from torch.utils.data import Dataset
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import Cache, DecodedCache, FusionLoader, _native
from fusionloader.cache.obtaining import CacheTooLarge

COUNT = 40
TIERS = (("encoded",), ("decoded",), ("index", "encoded"), ("index", "encoded", "decoded"))


class Photos(Dataset):
    """User code."""

    def __init__(self, folder):
        self.folder = ImageFolder(str(folder))
        self.transform = v1.Compose([v1.RandomResizedCrop(32), v1.ToTensor()])

    def __len__(self):
        return len(self.folder)

    def __getitem__(self, index):
        path, target = self.folder.samples[index]
        return self.transform(Image.open(path).convert("RGB")), target


def plan(folder):
    return ImageFolder(str(folder), train_transform())


def epochs(dataset, count, **options):
    torch.manual_seed(2)
    loader = FusionLoader(dataset, 5, num_workers=2, seed=3, **options)
    return [list(loader) for _ in range(count)], loader


def assert_same(ours, reference):
    assert all(same_batches(a, b) for a, b in zip(ours, reference, strict=True))


@pytest.fixture
def folder(image_folder, tmp_path):
    """Images that a test may change, one of a kind that Pillow decodes."""
    copy = tmp_path / "images"
    shutil.copytree(image_folder, copy)
    first = sorted(copy.glob("*/*.jpg"))[0]
    with Image.open(first) as image:
        image.convert("CMYK").save(first)
    return copy


def make_unreadable(folder):
    """Leaves nothing of the files but their sizes and times."""
    for path in folder.glob("*/*.jpg"):
        info = os.stat(path)
        path.write_bytes(bytes(info.st_size))
        os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("tiers", TIERS)
@pytest.mark.few(2)
def test_epochs_are_those_without_and_later_ones_read_nothing(folder, tmp_path, tiers, on_disk):
    reference, _ = epochs(plan(folder), 3)
    where = {"path": tmp_path / "disk"} if on_disk else {}
    cache = Cache("64MiB", tiers=tiers, **where)
    loader = FusionLoader(plan(folder), 5, num_workers=2, seed=3, cache=cache)
    first = list(loader)
    found = loader.stats().cache
    assert (found.hits, found.misses) == (0, COUNT)
    assert found.filled >= COUNT  # what is kept as bytes may become pixels, too
    make_unreadable(folder)
    assert_same([first, list(loader), list(loader)], reference)
    found = loader.stats().cache
    assert (found.hits, found.misses) == (2 * COUNT, COUNT)
    assert (found.epoch_hits, found.epoch_misses) == (COUNT, 0)
    assert sum(tier.hits for tier in found.tiers.values()) == found.hits


def listed(samples):
    """Has loaders serve whole batches."""
    return torch.stack([image for image, _ in samples]), torch.tensor([t for _, t in samples])


@pytest.mark.few(1)
@pytest.mark.parametrize("options", [{}, {"collate_fn": listed}])
@pytest.mark.parametrize("tiers", [("encoded",), ("index", "encoded", "decoded")])
def test_files_that_user_code_opens_are_kept_too(folder, tiers, options):
    reference, _ = epochs(Photos(folder), 2, **options)
    ours, loader = epochs(Photos(folder), 2, cache=Cache("64MiB", tiers=tiers), **options)
    assert_same(ours, reference)
    found = loader.stats().cache
    # Pillow decodes one of them, and reads it itself.
    assert (found.misses, found.hits) == (COUNT - 1, COUNT - 1)
    assert (found.epoch_misses, found.epoch_hits) == (0, COUNT - 1)
    assert f"got {COUNT - 1} of {COUNT - 1} samples from the cache" in loader.explain()


MORE = [pytest.param(kib, marks=pytest.mark.matrix) for kib in (16, 200)]


@pytest.mark.parametrize("kib", [12, 64, 600, *MORE])
@pytest.mark.parametrize("data", [plan, Photos])
@pytest.mark.few(1)
def test_hits_of_an_epoch_are_the_items_held_and_the_budget_is_never_exceeded(
    image_folder, data, kib
):
    dataset = data(image_folder)
    reference, _ = epochs(dataset, 3)
    ours, loader = epochs(dataset, 3, cache=Cache(kib * 1024, tiers=("encoded", "decoded")))
    assert_same(ours, reference)
    found = loader.stats().cache
    if found is None:  # less than the tables
        assert kib <= 16
        return
    held = sum(found.tiers[name].images for name in ("encoded", "decoded"))
    assert found.epoch_misses == COUNT - found.epoch_hits
    # What became pixels is held as bytes, too.
    assert found.epoch_hits <= held <= found.epoch_hits + found.tiers["decoded"].images
    assert found.bytes <= found.budget == kib * 1024


def test_a_budget_for_two_loaders_is_the_budget_of_both(image_folder):
    cache = Cache("300KiB", tiers=("encoded",))
    loaders = [
        FusionLoader(part, 5, num_workers=1, cache=cache)
        for part in (plan(image_folder), Photos(image_folder))
    ]
    for loader in loaders:
        list(loader)
    first, second = (loader.stats().cache for loader in loaders)
    assert first.bytes == second.bytes <= first.budget == 300 << 10
    assert first.tiers["encoded"].bytes + second.tiers["encoded"].bytes <= first.bytes
    assert first.tiers["encoded"].images + second.tiers["encoded"].images < 2 * COUNT


@pytest.mark.few(1)
@pytest.mark.parametrize("tiers", TIERS)
def test_a_file_that_was_replaced_is_read_anew(folder, tiers):
    loader = FusionLoader(plan(folder), 5, num_workers=2, seed=3, cache=Cache("64MiB", tiers=tiers))
    plain = FusionLoader(plan(folder), 5, num_workers=2, seed=3)
    list(loader), list(plain)
    path = sorted(folder.glob("*/*.jpg"))[7]
    Image.new("RGB", (64, 64), (200, 10, 10)).save(path)
    assert_same([list(loader)], [list(plain)])
    assert loader.stats().cache.epoch_misses == 1


@pytest.mark.few(1)
@pytest.mark.parametrize("cache", [None, "64MiB"])
def test_a_substitute_is_never_what_was_read_before(folder, cache):
    numbers = [*range(7), 10**6, *range(7, 10)]  # one that the dataset does not have
    expected = list(FusionLoader(plan(folder), 1, num_workers=1, seed=3))
    loader = FusionLoader(
        plan(folder), 1, sampler=numbers, num_workers=1, seed=3, on_error="substitute",
        cache=None if cache is None else Cache(cache, tiers=("decoded",)),
    )  # fmt: skip
    for _ in range(2):
        batches = list(loader)
        loader.set_epoch(0)
    for number, (image, _) in zip(numbers, batches, strict=True):
        if number < 10**6:
            assert torch.equal(image, expected[number][0])
    other = FusionLoader(plan(folder), 1, num_workers=1, seed=3, cache=loader.cache)
    assert_same([list(other)], [expected])


def test_a_loaders_own_index_is_not_paid_by_its_cache(image_folder):
    cache = Cache("64MiB", tiers=("encoded",))
    _, loader = epochs(plan(image_folder), 2, cache=cache, jpeg_index="auto")
    found = loader.stats()
    assert found.jpeg_index.images == found.cache.tiers["encoded"].images == COUNT
    assert found.cache.bytes == 4096 + -(-found.cache.tiers["encoded"].bytes // 4096) * 4096


def test_two_loaders_never_take_more_than_their_budget(image_folder, caplog):
    cache = Cache("12KiB", tiers=("encoded",))  # room for the tables of one dataset
    first, second = plan(image_folder), plan(image_folder)
    second.samples = second.samples[::-1]
    loaders = [FusionLoader(part, 5, num_workers=1, cache=cache) for part in (first, second)]
    for loader in loaders:
        list(loader)
    assert loaders[0].stats().cache.bytes == 12 << 10 and loaders[1].stats().cache is None
    assert "is cached: its memory cannot be made" in caplog.text


def test_damaged_files_raise_as_without_a_cache(folder):
    path = sorted(folder.glob("*/*.jpg"))[3]
    path.write_bytes(path.read_bytes()[:200])
    loader = FusionLoader(plan(folder), 5, num_workers=2, cache=Cache("64MiB"))
    for _ in range(2):  # read, and found in the cache
        with pytest.raises(OSError, match=path.name):
            list(loader)


def rates(**changes):
    base = {
        "samples": 1000, "room": 150e6, "encoded_bytes": 1e5, "decoded_bytes": 6e5,
        "read_s": 3e-5, "window_s": 6e-4, "pixels_s": 2.5e-4, "workers": 2, "cores": 2,
    }  # fmt: skip
    return {**base, **changes}


def test_slow_storage_wants_bytes_and_slow_decoding_pixels():
    best = _native.best_decoded_share
    assert best(**rates(read_s=4e-3, room=50e6)) == 0
    assert best(**rates(read_s=1e-6, room=50e6)) == 1
    assert best(**rates(room=1e9)) == 1  # all of them have room
    # All are kept as bytes, and what is left has room for pixels of a tenth.
    assert best(**rates(read_s=4e-3)) == pytest.approx(0.1, abs=0.01)


@given(
    room=st.floats(0, 1e9),
    read=st.floats(0, 1e-2),
    window=st.floats(1e-5, 1e-2),
    saved=st.floats(0, 1),
    larger=st.floats(1, 20),
    workers=st.integers(1, 16),
    cores=st.integers(1, 16),
    other=st.floats(0, 1),
)
def test_no_other_share_has_a_shorter_epoch(
    room, read, window, saved, larger, workers, cores, other
):
    given_rates = rates(
        room=room, read_s=read, window_s=window, pixels_s=window * (1 - saved),
        decoded_bytes=1e5 * larger, workers=workers, cores=cores,
    )  # fmt: skip

    def seconds(share):
        kept = min(1000, room / (share * 1e5 * larger + (1 - share) * 1e5))
        computes = 1000 * window - share * kept * window * saved
        return max(((1000 - kept) * read + computes) / workers, computes / min(workers, cores))

    best = seconds(_native.best_decoded_share(**given_rates))
    assert best <= seconds(other) * 1.02 + 1e-9
    assert min(seconds(0), seconds(1)) >= best * (1 - 1e-9)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"budget": 0}, "budget is written as"),
        ({"budget": "plenty"}, "budget is written as"),
        ({"budget": "1GiB", "tiers": ()}, "tiers should be some of"),
        ({"budget": "1GiB", "tiers": "decoded"}, "tiers should be some of"),
        ({"budget": "1GiB", "tiers": ("augmented",)}, "tiers should be some of"),
        ({"budget": "1GiB", "memory": "1GiB"}, "memory= is for a cache with a path"),
        ({"budget": "1GiB", "servers": ["a"]}, 'addresses as "host:port"'),
        ({"budget": "1GiB", "servers": ["a:1", "a:1"]}, "given twice"),
        ({"budget": "1GiB", "servers": "auto", "tiers": ("decoded",)}, 'should have "encoded"'),
    ],
)
def test_values_that_make_no_sense_are_refused(arguments, match):
    with pytest.raises(ValueError, match=match):
        Cache(**arguments)


def test_a_budget_beyond_the_machine_is_refused_before_the_epoch(image_folder, tmp_path):
    for cache, what in (
        (Cache("900TiB"), "of memory"),
        (DecodedCache("900TiB"), "of memory"),
        (Cache("900000TiB", path=tmp_path / "disk"), "that disk has"),
    ):
        with pytest.raises(CacheTooLarge, match=what):
            iter(FusionLoader(plan(image_folder), 5, num_workers=2, cache=cache))


def test_fast_decoding_goes_with_bytes_alone(image_folder):
    dataset = plan(image_folder)
    for changes in ({"decode": "fast"}, {"strict": False}):
        with pytest.raises(ValueError, match='tiers=\\("index", "encoded"\\)'):
            FusionLoader(dataset, cache=Cache("1GiB"), **changes)
        reference, _ = epochs(dataset, 2, **changes)
        ours, _ = epochs(dataset, 2, cache=Cache("64MiB", tiers=("index", "encoded")), **changes)
        assert_same(ours, reference)


@needs_returns
@pytest.mark.parametrize("dataset", [plan, Photos])
def test_an_exception_in_the_first_iter_leaves_no_loader_without_its_cache(folder, dataset):
    made = dataset(folder)

    def begin(loader, steps, position):
        with contextlib.suppress(KeyboardInterrupt):
            steps.raise_at(position, KeyboardInterrupt(), lambda: iter(loader))

    def steps():
        return Steps("cache/loader_cache.py", events=(*CALLS, "c_return"))

    count = steps().count(lambda: iter(FusionLoader(made, 5, num_workers=1, cache=Cache("1MiB"))))
    for position in sampled(count, 8, SEED):
        loader, planted = FusionLoader(made, 5, num_workers=1, cache=Cache("1MiB")), steps()
        begin(loader, planted, position)
        list(loader)
        assert loader.stats().cache.filled > 0, planted.place

"""A decoded cache: the same batches, made of what the first epoch decoded."""

import os

import numpy as np
import pytest
from PIL import Image
from support.batches import same_batches
from support.images import photo, train_transform
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import DecodedCache, FusionLoader


def kinds_of_files(root):
    """Two classes of images: sampled in several ways, grey, progressive, no JPEGs, damaged."""
    generator = np.random.default_rng(5)
    for number in range(24):
        folder = root / f"class{number % 2}"
        folder.mkdir(exist_ok=True, parents=True)
        image = photo(generator, *(int(side) for side in generator.integers(30, 150, 2)))
        kind = number % 8
        name = folder / f"{number:02}.{'png' if kind == 5 else 'jpg'}"
        if kind == 4:
            image = image.convert("L")
        options = {"subsampling": kind} if kind < 3 else {"progressive": kind == 3}
        image.convert("CMYK" if kind == 6 else image.mode).save(
            name, **({} if kind == 5 else options)
        )
        if kind == 7:  # damage that makes a decoder guess
            data = bytearray(name.read_bytes())
            data[-80:-77] = b"\x55\xaa\x55"
            name.write_bytes(data)
    return root


@pytest.fixture(scope="module")
def mixed_folder(tmp_path_factory):
    return kinds_of_files(tmp_path_factory.mktemp("mixed"))


def epochs(dataset, count, **options):
    options = {"batch_size": 5, "shuffle": False, "num_workers": 2, "seed": 3, **options}
    loader = FusionLoader(dataset, **options)
    return [list(loader) for _ in range(count)], loader


def assert_same(ours, reference):
    assert all(same_batches(a, b) for a, b in zip(ours, reference, strict=True))


@pytest.mark.few(1)
@pytest.mark.parametrize("persistent", [False, True])
def test_every_epoch_has_the_batches_that_it_has_without_a_cache(mixed_folder, persistent):
    steps = [v1.RandomResizedCrop(32), v1.RandomHorizontalFlip(), v1.RandAugment(), v1.ToTensor()]
    dataset = ImageFolder(str(mixed_folder), v1.Compose(steps))
    reference, _ = epochs(dataset, 3)
    ours, loader = epochs(dataset, 3, cache=DecodedCache("64MiB"), persistent_workers=persistent)
    assert_same(ours, reference)
    assert not same_batches(ours[0], ours[1])
    pixels = 0
    for path, _ in dataset.samples:
        with Image.open(path) as image:
            pixels += image.width * image.height
    found = loader.stats().decoded_cache
    assert found.images == len(dataset)
    assert 3 * pixels <= found.bytes <= 3 * pixels + 64 * (2 + 2 * len(dataset))


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "method", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.matrix)]
)
def test_workers_of_every_start_method_fill_it(image_folder, method):
    dataset = ImageFolder(str(image_folder), train_transform())
    reference, _ = epochs(dataset, 1)
    for init in (None, print):
        ours, loader = epochs(
            dataset,
            1,
            cache=DecodedCache("64MiB"),
            multiprocessing_context=method,
            worker_init_fn=init,
        )
        assert_same(ours, reference)
        assert loader.stats().decoded_cache.images == 40


@pytest.mark.few(1)
@pytest.mark.parametrize("change", ["size", "time"])
def test_a_file_that_changed_is_read_anew(tmp_path, change):
    (tmp_path / "a").mkdir()
    files = [tmp_path / "a" / f"{name}.bmp" for name in range(4)]
    for file in files:
        Image.new("RGB", (16, 16), (10, 20, 30)).save(file)
    dataset = ImageFolder(str(tmp_path), v1.Compose([v1.CenterCrop(8), v1.PILToTensor()]))
    loader = FusionLoader(dataset, 4, num_workers=2, cache=DecodedCache("1MiB"))
    ((before, _),) = loader
    found = files[2].stat()
    larger = 20 if change == "size" else 16
    Image.new("RGB", (larger, larger), (200, 20, 30)).save(files[2])
    time = found.st_mtime_ns + (10**9 if change == "time" else 0)
    os.utime(files[2], ns=(found.st_atime_ns, time))
    for _ in range(2):
        ((after, _),) = loader
        assert after[:, 0, 0, 0].tolist() == [10, 10, 200, 10]
    assert before[:, 0, 0, 0].tolist() == [10, 10, 10, 10]
    assert loader.stats().decoded_cache.images == 4


@pytest.mark.parametrize("kib", [12, 100, 500])
@pytest.mark.few(1)
def test_a_budget_that_is_too_small_is_used_up_and_never_exceeded(image_folder, kib):
    dataset = ImageFolder(str(image_folder), train_transform())
    reference, _ = epochs(dataset, 3)
    ours, loader = epochs(dataset, 3, cache=DecodedCache(kib * 1024))
    assert_same(ours, reference)
    found = loader.stats().decoded_cache
    assert found.budget == kib * 1024
    largest = 3 * 220 * 220
    assert found.budget - largest <= found.bytes <= found.budget
    assert (found.images > 0) == (kib > 12) and found.images < 40


def test_a_dataset_that_changes_gets_a_cache_of_its_own(image_folder, mixed_folder):
    dataset = ImageFolder(str(image_folder), train_transform())
    loader = FusionLoader(dataset, 5, num_workers=2, seed=3, cache=DecodedCache("64MiB"))
    list(loader)
    dataset.samples[:] = ImageFolder(str(mixed_folder)).samples
    reference, _ = epochs(dataset, 1)
    loader.set_epoch(0)
    assert_same([list(loader)], reference)
    assert loader.stats().decoded_cache.images == 24


def test_explain_says_whether_it_is_used(image_folder):
    def line(workers, *extra):
        steps = [v1.RandomResizedCrop(32), *extra, v1.ToTensor()]
        dataset = ImageFolder(str(image_folder), v1.Compose(steps))
        loader = FusionLoader(dataset, 4, num_workers=workers, cache=DecodedCache("1MiB"))
        (found,) = [row for row in loader.explain().splitlines() if "cache" in row]
        return found

    assert (
        line(2) == "cache (decoded): epochs after the first neither read nor decode what is in it"
    )
    assert line(0).startswith("no cache: samples are not made by workers")
    assert line(2, v1.Lambda(lambda image: image)).endswith("a part of the plan runs in Python")


def test_options_that_make_no_sense_are_refused(image_folder):
    with pytest.raises(ValueError, match="budget is written as"):
        DecodedCache("plenty")
    dataset = ImageFolder(str(image_folder), train_transform())
    with pytest.raises(ValueError, match=r"or None, such as Cache\('8GiB'\), not '8GiB'"):
        FusionLoader(dataset, cache="8GiB")
    with pytest.raises(ValueError, match='decode should be "exact"'):
        FusionLoader(dataset, decode="fast", cache=DecodedCache("8GiB"))

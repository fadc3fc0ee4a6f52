"""Loaders whose datasets open images, or get them behind a plan: deferred, and left to Pillow."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from deferred.steps import MocoBlur, PadToSquare
from PIL import Image, ImageOps
from support.batches import equal
from support.images import photo, train_transform
from support.seeding import ListsSeededByIndex
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fusionloader import FusionLoader, WorkerPool
from fusionloader.data.deferred import counts

COUNT = 24


class Files(Dataset):
    """A dataset as most people write it; ``form`` is what a sample looks like."""

    def __init__(self, folder, form="pair"):
        self.paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))
        self.transform, self.form = train_transform(32), form

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = Image.open(self.paths[index]).convert("RGB")
        if self.form == "crops":
            return [self.transform(image), self.transform(image)], index
        if self.form == "dict":
            return {"image": self.transform(image), "path": self.paths[index], "label": index}
        if self.form == "array":
            return np.asarray(image.resize((9, 9))), index
        return self.transform(image), index


class Stream(IterableDataset):
    def __init__(self, files):
        self.files = files

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (self.files[index] for index in range(first, len(self.files), step))


class Batches(Files):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


@pytest.fixture(autouse=True)
def no_counts():
    """None of other tests in this process."""
    counts.take()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("photos") / "a"
    root.mkdir()
    generator = np.random.default_rng(2)
    for number in range(COUNT):
        image = photo(generator, int(generator.integers(40, 90)), int(generator.integers(40, 90)))
        image.save(root / f"{number:02}.jpg", progressive=number % 5 == 4)
    return root


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Files of other kinds among the JPEGs."""
    root = tmp_path_factory.mktemp("mixed") / "a"
    root.mkdir()
    generator = np.random.default_rng(2)
    for number in range(COUNT):
        image = photo(generator, 60 + number, 50)
        options = {"progressive": number % 4 == 1, "dpi": (72, 72)}
        kind = {5: "PNG", 6: "WEBP"}.get(number, "JPEG")
        mode = {2: "L", 3: "CMYK"}.get(number, "RGB")
        if number == 7:
            exif = Image.Exif()
            exif[0x0112] = 6
            options["exif"] = exif
        image.convert(mode).save(root / f"{number:02}.{kind.lower()}", kind, **options)
    return root


def epochs(loader, count=2):
    return [list(loader) for _ in range(count)]


class TwoCrops:
    """As MoCo and SimSiam have it."""

    def __init__(self, *steps):
        self.steps = transforms.Compose(steps)

    def __call__(self, image):
        return [self.steps(image), self.steps(image)]


class Tells:
    """Looks at what Pillow says of the image, and goes on."""

    def __call__(self, image):
        told = image.mode, image.size, sorted(map(str, image.info)), type(image).__name__
        level = sum(map(ord, str(told))) % 256 / 255
        return transforms.functional.to_tensor(ImageOps.exif_transpose(image)) + level


CROP = transforms.RandomResizedCrop(24)
JITTER = transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)
# Behind a plan, which makes the image that they get.
TAILS = {
    "two crops": TwoCrops(CROP, JITTER, MocoBlur(), transforms.ToTensor()),
    "after a crop": transforms.Compose([CROP, MocoBlur(), JITTER, transforms.ToTensor()]),
    "after a resize to any size": transforms.Compose(
        [transforms.Resize(40), PadToSquare(), CROP, transforms.ToTensor()]
    ),
    "of grey": transforms.Compose([transforms.Grayscale(), CROP, Tells()]),
    "after borders": transforms.Compose(
        [transforms.Pad((3, 1)), transforms.RandomRotation(9), MocoBlur(), CROP, Tells()]
    ),
    "after an expanded rotation": transforms.Compose(
        [transforms.RandomRotation(9, expand=True), MocoBlur(), CROP, Tells()]
    ),
    "in v2": v2.Compose([v2.RandomResizedCrop(24), v2.RandomHorizontalFlip(), Tells()]),
    "of the image's info": transforms.Compose([transforms.Resize((30, 30)), Tells()]),
}


class Encoded(Dataset):
    """Bytes from anywhere."""

    def __init__(self, folder, transform):
        self.contents = [path.read_bytes() for path in sorted(folder.iterdir())]
        self.transform = transform

    def __len__(self):
        return len(self.contents)

    def read_encoded(self, index):
        return self.contents[index], index

    def __getitem__(self, index):
        with Image.open(io.BytesIO(self.contents[index])) as image:
            return self.transform(image.convert("RGB")), index


DATASETS = {
    "pair": Files,
    "dict": lambda folder: Files(folder, "dict"),
    "crops": lambda folder: Files(folder, "crops"),
    "array": lambda folder: Files(folder, "array"),
    "whole batches": Batches,
    "stream": lambda folder: Stream(Files(folder)),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [*DATASETS, *(f"tail, {name}" for name in TAILS), "encoded"])
@pytest.mark.few(3)
def test_batches_are_those_without(folder, mixed, kind, workers):
    tail = TAILS[kind.removeprefix("tail, ") if "tail" in kind else "two crops"]
    if kind in DATASETS:
        dataset, files = DATASETS[kind](folder), COUNT
    else:  # those that are left to Pillow: grey, CMYK and others
        files = COUNT - 4
        encoded = kind == "encoded"
        dataset = Encoded(mixed, tail) if encoded else ImageFolder(str(mixed.parent), tail)

    def run(deferred):
        torch.manual_seed(4)
        loader = FusionLoader(dataset, 4, num_workers=workers, seed=3, deferred_images=deferred)
        return epochs(loader), loader

    (expected, plain), (found, deferred) = run("off"), run("auto")
    assert equal(found, expected)
    counted = deferred.stats().deferred_images
    assert not plain.stats().deferred_images["files"]
    if kind == "tail, of grey":  # Pillow's image of one channel
        assert not counted["results"]
        return
    assert sum(counted["results"].values()) >= 2 * files
    if kind in DATASETS:
        assert counted["files"] >= 2 * files
        assert not counted["left_to_pillow"]
        assert f"{counted['files']} files opened by user code" in deferred.explain()
        assert "deferred" not in plain.explain()


@pytest.mark.few(1)
@pytest.mark.parametrize("workers", [0, 2])
def test_torchs_own_loader_gives_the_same_where_it_draws_the_same(folder, workers):
    dataset = ListsSeededByIndex(Files(folder))

    def run(kind, **more):
        torch.manual_seed(8)
        return epochs(kind(dataset, 5, shuffle=True, num_workers=workers, **more))

    assert equal(run(FusionLoader), run(DataLoader))


@pytest.mark.parametrize("method", ["forkserver", pytest.param("spawn", marks=pytest.mark.matrix)])
def test_workers_of_every_start_method_defer(folder, method):
    loader = FusionLoader(Files(folder), 5, num_workers=1, multiprocessing_context=method, seed=3)
    expected = FusionLoader(Files(folder), 5, num_workers=1, seed=3, deferred_images="off")
    assert equal(list(loader), list(expected))
    assert loader.stats().deferred_images["files"] == COUNT


def test_workers_of_a_pool_defer(folder):
    with WorkerPool(2) as pool:
        loaders = [
            FusionLoader(Files(folder, form), 5, pool=pool, seed=3) for form in ("pair", "crops")
        ]
        found = [list(loader) for loader in loaders]
    for batches, form in zip(found, ("pair", "crops"), strict=True):
        expected = FusionLoader(
            Files(folder, form), 5, num_workers=1, seed=3, deferred_images="off"
        )
        assert equal(batches, list(expected))


class Damaged(Dataset):
    """Files of which one is damaged where only decoding finds it; what is done about that."""

    def __init__(self, folder, handled):
        self.files = [path.read_bytes() for path in sorted(folder.iterdir())]
        progressive = self.files[4]
        cut = len(progressive) // 2
        # A marker that libjpeg refuses, between two scans.
        self.files[4] = progressive[:cut] + b"\xff\xc4\x00\x03\xff" + progressive[cut:]
        self.handled = handled

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        try:
            image = Image.open(io.BytesIO(self.files[index])).convert("RGB")
            place = "whole"
        except OSError:
            if not self.handled:
                raise
            image, place = Image.new("RGB", (9, 9)), "damaged"
        return transforms.functional.to_tensor(image.resize((9, 9))), place == "whole"


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("whole", [False, True])
def test_damage_is_found_where_pillow_finds_it_however_batches_are_made(folder, workers, whole):
    dataset = Damaged(folder, handled=True)
    assert not dataset[4][1], "this file does not show anything"
    if whole:
        dataset.__class__ = type("Whole", (Damaged,), {"__getitems__": Batches.__getitems__})
    found = list(FusionLoader(dataset, 6, num_workers=workers))
    assert equal(found, list(DataLoader(dataset, 6)))


def test_an_unhandled_error_is_pillows(folder):
    dataset = Damaged(folder, handled=False)
    with pytest.raises(OSError) as expected:
        dataset[4]
    with pytest.raises(OSError) as found:
        list(FusionLoader(dataset, 6, num_workers=1))
    assert type(found.value) is type(expected.value)
    assert str(expected.value) in str(found.value)


class Caching(Files):
    """Keeps the images that it has opened."""

    def __init__(self, folder):
        super().__init__(folder)
        self.kept = {}

    def __getitem__(self, index):
        if index not in self.kept:
            self.kept[index] = Image.open(self.paths[index]).convert("RGB")
        return self.transform(self.kept[index]), index


@pytest.mark.parametrize("workers", [0, 1])
def test_images_that_the_dataset_keeps_stay_good(folder, workers):
    def run(deferred):
        torch.manual_seed(4)
        return epochs(
            FusionLoader(
                Caching(folder),
                5,
                num_workers=workers,
                seed=3,
                deferred_images=deferred,
                persistent_workers=workers > 0,
            ),
            3,
        )

    assert equal(run("auto"), run("off"))


class CachingResized(Dataset):
    """Keeps a resized image of each large file, and tells the memory of its process."""

    flip = transforms.RandomHorizontalFlip()

    def __init__(self, path, form):
        self.path, self.form, self.kept = path, form, {}

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if index not in self.kept:
            self.kept[index] = Image.open(self.path).convert("RGB").resize((40, 30))
            if self.form == "gray":
                self.kept[index] = self.kept[index].convert("L")
            if self.form == "info":
                self.kept[index].info["index"] = index
        image = self.flip(self.kept[index])
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        # The access is of the image as it is now, and of what it holds later.
        access = image.load() if self.form == "access" else None
        array = np.asarray(image)
        assert access is None or access[0, 0] == tuple(array[0, 0])
        return array, image.info.get("index", -1), resident


@pytest.mark.parametrize("form", ["rgb", "gray", "info", "access"])
def test_images_that_a_dataset_keeps_do_not_keep_their_files(tmp_path, form):
    path = tmp_path / "large.jpg"
    photo(np.random.default_rng(0), 1600, 1200).save(path, quality=95)
    assert path.stat().st_size > 500_000

    def run(deferred):
        loader = FusionLoader(
            CachingResized(path, form),
            *(4, True),
            num_workers=1,
            generator=torch.Generator().manual_seed(0),
            seed=3,
            deferred_images=deferred,
            persistent_workers=True,
        )
        found = sum(epochs(loader, 3), [])
        return [batch[:2] for batch in found], [batch[2].max().item() for batch in found]

    batches, resident = run("auto")
    expected, _ = run("off")
    assert equal(batches, expected)
    assert max(resident) - min(resident) < 50 * 500_000


def test_a_file_may_vanish_once_it_is_loaded(tmp_path):
    class Vanishing(Dataset):
        def __len__(self):
            return 2

        def __getitem__(self, index):
            path = tmp_path / f"{index}.jpg"
            photo(np.random.default_rng(index), 40, 30).save(path)
            image = Image.open(path)
            image.load()
            path.unlink()
            return transforms.functional.pil_to_tensor(image)

    found, expected = (
        list(FusionLoader(Vanishing(), 2, num_workers=1, deferred_images=how))
        for how in ("auto", "off")
    )
    assert equal(found, expected)


def test_the_option_is_checked(folder):
    with pytest.raises(ValueError, match="deferred_images should be one of"):
        FusionLoader(Files(folder), deferred_images="on")


def test_a_fetch_ends_well_whatever_the_dataset_keeps(folder):
    class Keeping(Damaged):
        kept: list = []

        def __getitem__(self, index):
            self.kept.append(Image.open(io.BytesIO(self.files[index])))
            return index

    dataset = Keeping(folder, handled=False)
    list(FusionLoader(dataset, 6))
    for index, image in enumerate(dataset.kept):
        if index == 4:
            with pytest.raises(OSError):
                image.load()
        else:
            expected = np.asarray(Image.open(io.BytesIO(dataset.files[index])))
            assert np.array_equal(np.asarray(image), expected)


def test_a_worker_does_not_report_what_training_has_counted(mixed):
    counts.counts().files += 3
    dataset = ImageFolder(str(mixed.parent), TAILS["of grey"])
    loader = FusionLoader(dataset, 4, num_workers=1, deferred_images="off")
    list(loader)
    counts.take()
    assert not loader.stats().deferred_images["files"]


def test_damaged_files_behind_a_plan_raise_what_they_raise_without(mixed, tmp_path):
    (tmp_path / "a").mkdir()
    for path in sorted(mixed.iterdir())[:8]:  # all kinds
        content = path.read_bytes()
        (tmp_path / "a" / path.name).write_bytes(content[: len(content) // 2])
    dataset = ImageFolder(str(tmp_path), TAILS["two crops"])
    for index in range(len(dataset)):
        messages = []
        for deferred in ("off", "auto"):
            options = {"num_workers": 1, "deferred_images": deferred}
            loader = FusionLoader(dataset, 1, sampler=[index], **options)
            with pytest.raises(Exception) as raised:  # noqa: PT011
                list(loader)
            messages.append((raised.type, str(raised.value).splitlines()[-1]))
        assert messages[0] == messages[1]


def test_the_users_generators_are_as_they_were(mixed):
    dataset = ImageFolder(str(mixed.parent), TAILS["two crops"])
    torch.manual_seed(1)
    loader = FusionLoader(dataset, 4, seed=7)
    state = torch.get_rng_state()
    iterator = iter(loader)
    after = torch.get_rng_state()
    next(iterator)
    assert torch.equal(torch.get_rng_state(), after)
    assert state.shape == after.shape


class Switching(Dataset):
    """Numbers, or images once it is told so."""

    images = False

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 100

    def __getitem__(self, index):
        if not self.images:
            return index
        with Image.open(self.path) as image:
            return transforms.functional.to_tensor(image.convert("RGB"))


def test_later_loaders_of_a_dataset_look_for_images_as_the_first_one_goes_on(folder):
    dataset = Switching(Files(folder).paths[0])
    list(FusionLoader(dataset, 10))  # it has looked at the first mini-batches
    dataset.images = True
    assert not any("deferred" in line for line in explained(dataset))
    assert any("deferred" in line for _ in range(9) for line in explained(dataset))


def explained(dataset):
    loader = FusionLoader(dataset, 10)
    assert len(list(loader)) == 10
    return loader.explain().splitlines()

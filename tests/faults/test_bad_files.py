"""Files that are not what they should be, through real workers."""

import os
import shutil

import numpy as np
import pytest
import torch
from PIL import Image, UnidentifiedImageError
from support.batches import same_batches
from support.images import eval_transform, photo
from support.notes import HAS_NOTES, said
from support.waiting import PATIENCE
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader


@pytest.fixture
def folder(image_folder, tmp_path):
    root = tmp_path / "copy"
    shutil.copytree(image_folder, root)
    return root


def loader_over(root, **arguments):
    return FusionLoader(ImageFolder(str(root), eval_transform()), 8, num_workers=2, **arguments)


def victim(root):
    return ImageFolder(str(root)).samples[11][0]


def truncate(path):
    os.truncate(path, os.path.getsize(path) // 2)


def empty(path):
    os.truncate(path, 0)


def scribble(path):
    with open(path, "wb") as file:
        file.write(b"this is not an image")


@pytest.mark.parametrize(
    ("damage", "kind"),
    [(truncate, OSError), (empty, UnidentifiedImageError), (scribble, UnidentifiedImageError)],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_file_is_the_error_of_pillow_and_named(folder, damage, kind, workers):
    path = victim(folder)
    dataset = ImageFolder(str(folder), eval_transform())
    damage(path)
    with pytest.raises(kind) as caught:
        list(FusionLoader(dataset, 8, num_workers=workers))
    text = said(caught.value)
    assert path in text and "index 11" in text or not (workers or HAS_NOTES)


def test_what_a_crop_does_not_need_may_be_missing_if_not_strict(folder):
    path = victim(folder)
    top = transforms.Compose([transforms.CenterCrop((20, 40)), transforms.ToTensor()])
    dataset = ImageFolder(str(folder), top)
    expected = list(DataLoader(dataset, 8))
    os.truncate(path, os.path.getsize(path) - 40)
    with pytest.raises(OSError, match="truncated"):
        list(FusionLoader(dataset, 8, num_workers=2))
    for workers in (0, 2):
        loader = FusionLoader(dataset, 8, num_workers=workers, strict=False)
        assert same_batches(expected, list(loader))
        assert loader.stats().pillow_samples == 0
    truncate(path)  # now the crop's lower rows are missing too
    with pytest.raises(OSError, match="truncated"):
        list(FusionLoader(dataset, 8, num_workers=2, strict=False))


@pytest.mark.parametrize("damage", [truncate, empty, scribble, os.unlink])
def test_a_bad_file_can_be_left_out(folder, damage):
    path = victim(folder)
    dataset = ImageFolder(str(folder), eval_transform())
    expected = list(DataLoader(dataset, 8))
    damage(path)
    loader = FusionLoader(dataset, 8, num_workers=2, on_error="skip")
    batches = list(loader)
    kept = [row for row in range(8) if row != 3]
    assert torch.equal(batches[1][0], expected[1][0][kept])
    assert same_batches(expected[2:], batches[2:])
    assert loader.stats().skipped == 1 and path in loader.stats().errors[0]
    assert loader.stats().pillow_samples == 0


def test_a_file_removed_during_the_epoch_is_named(folder):
    loader = loader_over(folder, prefetch_factor=1)
    iterator = iter(loader)
    next(iterator)
    removed = loader.dataset.samples[-1][0]
    os.unlink(removed)
    with pytest.raises(FileNotFoundError, match="index 39") as caught:
        list(iterator)
    assert removed in str(caught.value)


def test_a_folder_in_a_files_place_is_named(folder):
    path = victim(folder)
    loader = loader_over(folder)
    os.unlink(path)
    os.mkdir(path)
    with pytest.raises(IsADirectoryError, match="index 11"):
        list(loader)


def test_other_formats_have_the_pixels_of_torchvision(folder):
    generator = np.random.default_rng(3)
    image = photo(generator, 90, 70)
    for number, (name, mode) in enumerate(
        [("a.png", "RGB"), ("b.png", "P"), ("c.webp", "RGB"), ("d.jpg", "CMYK"), ("e.jpg", "L")]
    ):
        image.convert(mode).save(folder / f"class{number % 2}" / name)
    Image.fromarray(generator.integers(0, 65536, (50, 60)).astype(np.uint16)).save(
        folder / "class0" / "sixteen.png"
    )
    photo(generator, 1, 1).save(folder / "class0" / "one.jpg")
    photo(generator, 1, 300).save(folder / "class1" / "thin.jpg", quality=50)
    photo(generator, 80, 80).save(folder / "class1" / "progressive.jpg", progressive=True)
    dataset = ImageFolder(str(folder), eval_transform())
    loader = FusionLoader(dataset, 8, num_workers=2)
    assert same_batches(DataLoader(dataset, 8), loader)
    assert loader.stats().pillow_samples == 2  # CMYK, and two bytes a sample


def test_a_decompression_bomb_is_refused_as_by_pillow(folder):
    blank = Image.new("L", (20_000, 20_000))
    blank.save(folder / "class0" / "bomb.jpg", quality=1)
    with pytest.raises(Image.DecompressionBombError, match=r"bomb\.jpg"):
        list(loader_over(folder))


class MostlyBad(Dataset):
    """The first seven samples cannot be read."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index < 7:
            raise OSError(f"nothing at {index}")
        return torch.tensor(float(index)), index


def test_batches_without_a_sample_are_left_out_from_the_first_one_on():
    loader = FusionLoader(MostlyBad(), 4, num_workers=2, on_error="skip", timeout=PATIENCE)
    assert [targets.tolist() for _, targets in loader] == [[7], [8, 9, 10, 11]]
    assert loader.stats().skipped == 7


def test_an_epoch_without_a_sample_has_no_batches():
    loader = FusionLoader(
        Subset(MostlyBad(), range(7)), 4, num_workers=2, on_error="skip", timeout=PATIENCE
    )
    assert list(loader) == []
    assert loader.stats().skipped == 7


@pytest.mark.parametrize("workers", [0, 2])
def test_a_fifo_without_a_writer_is_an_error_and_not_waited_for(folder, workers):
    path, dataset = victim(folder), ImageFolder(str(folder), eval_transform())
    os.unlink(path)
    os.mkfifo(path)
    with pytest.raises(OSError, match="is a FIFO, and should be a file") as caught:
        list(FusionLoader(dataset, 8, num_workers=workers))
    assert path in str(caught.value)

"""``ConcatDataset`` of image folders: compiled as one folder."""

import pytest
import torch
from support.batches import same_batches
from support.images import eval_transform
from torch.utils.data import ConcatDataset, DataLoader, Subset, random_split
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader


def folders(image_folder, transform, target_transform=None):
    made = (ImageFolder(str(image_folder), transform, target_transform) for _ in range(2))
    return ConcatDataset(made)


def with_tail():
    return v1.Compose([eval_transform(), v1.Lambda(torch.neg)])


@pytest.mark.few(2)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("transform", [eval_transform, with_tail])
def test_batches_are_data_loaders(image_folder, transform, workers):
    joined = folders(image_folder, transform())
    count = len(joined)
    parts = {
        "joined": joined,
        "a subset": Subset(joined, [count - 1, 0, -1, count // 2, count // 2 - 1]),
        "subsets": ConcatDataset([Subset(joined, [3, -3]), joined.datasets[1]]),
        "a split": random_split(joined, [0.5, 0.5], torch.Generator().manual_seed(1))[0],
        "one": ConcatDataset([joined.datasets[0]]),
    }
    for name, dataset in parts.items():
        loader = FusionLoader(dataset, 7, num_workers=workers)
        assert "ImageFolder: read: native" in loader.explain(), name
        assert same_batches(DataLoader(dataset, 7), loader), name


def test_a_bad_sample_is_named_by_its_place_and_file(tmp_path, image_folder):
    broken = tmp_path / "images" / "a" / "broken.jpg"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"no image")
    steps = eval_transform()
    dataset = ConcatDataset(
        [ImageFolder(str(image_folder), steps), ImageFolder(str(tmp_path / "images"), steps)]
    )
    place = len(dataset) - 1
    with pytest.raises(Exception, match=rf"index 1 \({broken}\)"):
        list(FusionLoader(Subset(dataset, [0, place]), 2, num_workers=1))


def test_parts_that_differ_have_a_plan_each(image_folder):
    first, second = folders(image_folder, eval_transform()).datasets
    second.transform = v1.Compose([v1.Resize((60, 60)), *eval_transform().transforms])
    loader = FusionLoader(ConcatDataset([first, second]), 4, num_workers=1)
    assert loader.explain().count("ImageFolder: read: native") == 2
    assert same_batches(DataLoader(loader.dataset, 4), loader)
    rows = ConcatDataset([first, [(torch.zeros(3, 32, 32), 1)]])
    assert same_batches(DataLoader(rows, 4), FusionLoader(rows, 4, num_workers=1))
    assert "not a dataset that is known" in FusionLoader(rows, 4, num_workers=1).explain()


def test_a_transform_that_is_changed_in_a_part_is_noticed(image_folder):
    joined = folders(image_folder, eval_transform())
    loader = FusionLoader(joined, 8, num_workers=1)
    assert same_batches(DataLoader(joined, 8), loader)
    joined.datasets[1].transform = with_tail()
    assert same_batches(DataLoader(joined, 8), loader)
    for part in joined.datasets:
        part.transform = with_tail()
    assert same_batches(DataLoader(joined, 8), loader)


def test_a_class_of_the_users_own_runs_its_code(image_folder):
    class Backwards(ConcatDataset):
        def __getitem__(self, index):
            return super().__getitem__(len(self) - 1 - index)

    dataset = Backwards(folders(image_folder, eval_transform()).datasets)
    assert same_batches(DataLoader(dataset, 4), FusionLoader(dataset, 4, num_workers=1))

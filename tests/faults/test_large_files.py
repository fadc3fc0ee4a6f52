"""Files far larger than the image in them: a worker takes no more memory than for the image."""

import os
import re
from pathlib import Path

import numpy as np
import psutil
import pytest
from PIL import Image
from support.batches import same_batches
from support.images import eval_transform, photo
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader

GIB = 1 << 30


class Opened(Dataset):
    """An own dataset: images are opened by its code."""

    def __init__(self, root):
        self.samples, self.transform = ImageFolder(str(root)).samples, eval_transform()

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, target = self.samples[index]
        return self.transform(Image.open(path).convert("RGB")), target


def halved(image):
    return image.point(lambda level: level // 2)


DATASETS = {
    "plan": lambda root: ImageFolder(str(root), eval_transform()),
    "plan with a Python tail": lambda root: ImageFolder(
        str(root),
        transforms.Compose([*eval_transform().transforms[:2], halved, transforms.ToTensor()]),
    ),
    "own dataset": Opened,
}


@pytest.fixture(params=["jpg", "png"])
def root(tmp_path, request):
    """A few images, one of them with a GiB of nothing behind it."""
    (tmp_path / "class").mkdir()
    for number in range(4):
        path = tmp_path / "class" / f"{number}.{request.param}"
        photo(np.random.default_rng(number), 80, 60).save(path)
    os.truncate(path, GIB)
    return tmp_path


def most_of_workers():
    """The most memory that a child of this process has had."""
    found = [
        re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{child.pid}/status").read_text())
        for child in psutil.Process().children()
    ]
    return max(int(match[1]) << 10 for match in found if match)


@pytest.mark.parametrize("kind", DATASETS)
def test_what_lies_behind_an_image_takes_no_memory(root, kind):
    dataset = DATASETS[kind](root)
    inherited = psutil.Process().memory_info().rss  # a fork begins with as much
    with FusionLoader(dataset, 2, num_workers=1, persistent_workers=True) as loader:
        ours = list(loader)
        assert most_of_workers() < inherited + GIB // 2
    assert same_batches(ours, list(DataLoader(dataset, 2)))

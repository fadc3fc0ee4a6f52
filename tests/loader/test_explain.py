"""explain(): where the time of an epoch went."""

import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from support.batches import equal
from support.images import train_transform
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader


class Jitter:
    """A random transform of the user's."""

    def __call__(self, image):
        return image.rotate(random.uniform(-5, 5) + float(torch.rand(())) + np.random.rand())


def loader(folder, workers, *extra):
    steps = [v1.RandomResizedCrop(48), v1.RandAugment(), *extra, v1.ToTensor()]
    dataset = ImageFolder(str(folder), v1.Compose(steps))
    return FusionLoader(dataset, 8, num_workers=workers, seed=5)


def share(text, line):
    (found,) = [entry for entry in text.splitlines() if entry.startswith(line)]
    return int(re.search(r", (\d+)% of the time", found).group(1))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("python", [False, True])
def test_shares_of_the_time_add_up(image_folder, workers, python):
    ours = loader(image_folder, workers, *[Jitter()] * python)
    assert "% of the time" not in ours.explain()
    list(ours)
    text = ours.explain()
    names = ["ImageFolder", "decode", "RandAugment"] + ["<"] * python
    shares = [share(text, name) for name in names]
    assert 97 <= sum(shares) <= 103
    crop, conversion = (line for line in text.splitlines() if "counted" in line)
    assert crop.startswith("RandomResizedCrop") and crop.endswith(": native, counted with decode")
    assert conversion.endswith("counted above" if python else "counted with decode")
    # A part may be a hundredth of the time or less, but not nothing.
    spent = [seconds for seconds in ours.stats().part_seconds if seconds > 0]
    assert len(spent) >= len(names)


def test_shares_are_known_while_workers_persist(image_folder):
    ours = FusionLoader(
        ImageFolder(str(image_folder), train_transform()), 8, num_workers=1, persistent_workers=True
    )
    list(ours)
    assert share(ours.explain(), "decode") > 0


def test_a_reader_of_the_users_has_its_share(image_folder):
    class Encoded(torch.utils.data.Dataset):
        transform = train_transform()
        files = ImageFolder(str(image_folder)).samples

        def __len__(self):
            return len(self.files)

        def read_encoded(self, index):
            path, target = self.files[index]
            return Path(path).read_bytes(), target

        def __getitem__(self, index):
            raise NotImplementedError

    ours = FusionLoader(Encoded(), 8)
    assert "Encoded: read: python (by its read_encoded())\ndecode: native\n" in ours.explain()
    list(ours)
    assert share(ours.explain(), "Encoded: read") + share(ours.explain(), "decode") >= 99


def test_user_code_in_the_training_process_draws_as_in_workers_and_leaves_no_trace(image_folder):
    in_workers = list(loader(image_folder, 2, Jitter()))
    random.seed(1), torch.manual_seed(1), np.random.seed(1)
    iterator = iter(loader(image_folder, 0, Jitter()))
    before = random.getstate(), torch.get_rng_state(), np.random.get_state()[1]
    here = list(iterator)
    assert all(equal(a, b) for a, b in zip(in_workers, here, strict=True))
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    assert np.array_equal(np.random.get_state()[1], before[2])


def test_the_last_line_says_how_long_training_waits(image_folder):
    loader = FusionLoader(ImageFolder(str(image_folder), train_transform()), 8, num_workers=1)
    assert "waits" not in loader.explain()
    list(loader)
    share = f"{loader.stats().wait_share:.1%}"
    assert loader.explain().splitlines()[-1].startswith(f"Training waits {share} of its time")

"""What tests of decoders and of both kinds of GPU workers share."""

import numpy as np
import pytest
from support.cropped_epochs import BATCHES
from support.images import photo
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    """For epochs of ``support.cropped_epochs``."""
    folder = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(1)
    (folder / "class").mkdir()
    for number in range(40):
        width, height = (int(side) for side in generator.integers(70, 150, 2))
        photo(generator, width, height).save(folder / "class" / f"{number}.jpg")
    steps = [v1.RandomCrop(64), v1.RandomHorizontalFlip(), v1.ColorJitter(0.4), v1.ToTensor()]
    return ImageFolder(str(folder), v1.Compose(steps))


@pytest.fixture(scope="session")
def expected(dataset):
    """Batches of epoch 7, made by a CPU worker."""
    loader = FusionLoader(dataset, batch_sampler=BATCHES, num_workers=1, seed=5)
    loader.set_epoch(7)
    return list(loader)

"""User code after the plan finds what Pillow keeps beside the pixels: EXIF and the like."""

import numpy as np
import pytest
from PIL import Image, ImageOps
from support.batches import same_batches
from support.images import photo
from torch.utils.data import DataLoader
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder
from torchvision.transforms import v2

from fusionloader import FusionLoader


@pytest.fixture(scope="module")
def turned(tmp_path_factory):
    """JPEGs and PNGs that say in their EXIF how they are to be turned."""
    root = tmp_path_factory.mktemp("turned")
    (root / "class").mkdir()
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        image = photo(np.random.default_rng(orientation), 40, 24)
        image.save(root / "class" / f"{orientation}.jpg", exif=exif)
        image.convert("L").save(root / "class" / f"grey{orientation}.jpg", exif=exif, dpi=(72, 72))
        image.save(root / "class" / f"{orientation}.png", exif=exif)
    return root


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("before", [[], [v1.Resize((20, 30))]], ids=["first", "after a resize"])
@pytest.mark.parametrize("module", [v1, v2])
def test_orientation_is_known_to_user_code(turned, workers, before, module):
    steps = [*before, module.Lambda(ImageOps.exif_transpose), v1.Resize((16, 16)), v1.ToTensor()]
    dataset = ImageFolder(str(turned), v1.Compose(steps))
    assert same_batches(DataLoader(dataset, 4), FusionLoader(dataset, 4, num_workers=workers))


def test_everything_that_pillow_tells_is_there(turned):
    seen = []
    dataset = ImageFolder(str(turned), v1.Lambda(lambda image: seen.append(image.info) or 0))
    list(DataLoader(dataset))
    theirs, seen[:] = list(seen), []
    list(FusionLoader(dataset))
    assert seen == theirs

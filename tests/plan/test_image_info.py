"""User code after the plan finds what Pillow keeps beside the pixels: EXIF and the like."""

import numpy as np
import pytest
from PIL import Image, ImageOps
from support.batches import same_batches
from support.images import photo
from torch.utils.data import DataLoader, Subset
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


STEPS = {
    "brightness": v1.ColorJitter((0.5, 0.5)),
    "contrast": v1.ColorJitter(contrast=(0.5, 0.5)),
    "saturation": v1.ColorJitter(saturation=(0.5, 0.5)),
    "hue": v1.ColorJitter(hue=(0.1, 0.1)),
    "sharpness": v1.RandomAdjustSharpness(2, p=1),
    "blur": v1.GaussianBlur(3, (1.0, 1.0)),
    "gray": v1.Grayscale(),
    "three gray channels": v1.Grayscale(3),
    "gray hue": v1.Compose([v1.Grayscale(), v1.ColorJitter(hue=(0.1, 0.1))]),
    "posterize": v1.RandomPosterize(2, p=1),
    "equalize": v1.RandomEqualize(p=1),
    "mix": v1.AugMix(),
    "flip": v1.RandomHorizontalFlip(p=1),
    "rotation": v1.RandomRotation((20, 20), expand=True),
    "crop of a rotation": v1.Compose([v1.RandomRotation((90, 90), expand=True), v1.CenterCrop(23)]),
    "perspective": v1.RandomPerspective(p=1),
    "pad": v1.Pad(2),
    "pad by an edge": v1.Pad(2, padding_mode="edge"),
    "crop": v1.CenterCrop(16),
    "larger crop": v1.CenterCrop((25, 16)),
    "padded crop": v1.RandomCrop((8, 8), padding=1),
    "crop within": v1.RandomCrop((8, 8)),
}


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_user_code_finds_what_torchvision_leaves(turned, step):
    def told(image):
        return "exif" in image.info or "dpi" in image.info

    dataset = ImageFolder(str(turned), v1.Compose([step, v1.Lambda(told)]))
    expected = [dataset[index][0] for index in range(len(dataset))]
    for workers in 0, 1:
        loader = FusionLoader(dataset, batch_size=4, num_workers=workers)
        assert [told for batch, _ in loader for told in batch.tolist()] == expected


def test_a_random_step_takes_it_only_where_it_is_drawn(turned):
    def told(image):
        red, green, _ = image.split()
        return red.tobytes() == green.tobytes(), "exif" in image.info

    steps = [v1.RandomGrayscale(0.5), v1.Lambda(told)]
    folder = ImageFolder(str(turned), v1.Compose(steps))
    colored = [at for at, (path, _) in enumerate(folder.samples) if "grey" not in path]
    loader = FusionLoader(Subset(folder, colored), batch_size=4)
    made = {
        told
        for (gray, exif), _ in loader
        for told in zip(gray.tolist(), exif.tolist(), strict=True)
    }
    assert made == {(True, False), (False, True)}


def test_everything_that_pillow_tells_is_there(turned):
    seen = []
    dataset = ImageFolder(str(turned), v1.Lambda(lambda image: seen.append(image.info) or 0))
    list(DataLoader(dataset))
    theirs, seen[:] = list(seen), []
    list(FusionLoader(dataset))
    assert seen == theirs

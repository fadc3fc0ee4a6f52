"""augment_per: augmentations drawn for every sample, or once per tiny-batch."""

import numpy as np
import pytest
import torch
from PIL import Image
from support.batches import equal
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader

SIDE, SAMPLES = 8, 960


@pytest.fixture(scope="module")
def one_image(tmp_path_factory):
    """960 samples of the same picture, a ramp: what differs between results is what was drawn."""
    root = tmp_path_factory.mktemp("one")
    (root / "class").mkdir()
    ramp = np.arange(SIDE * SIDE, dtype=np.uint8).reshape(SIDE, SIDE, 1).repeat(3, axis=2)
    Image.fromarray(ramp).save(root / "class" / "ramp.png")
    dataset = ImageFolder(str(root))
    dataset.samples = dataset.samples * SAMPLES
    return dataset


def loader(dataset, *steps, per="tiny_batch", workers=0, size=4, batch=48, seed=3):
    dataset.transform = v1.Compose([*steps, v1.PILToTensor()])
    return FusionLoader(
        dataset, batch, num_workers=workers, seed=seed, augment_per=per, tiny_batch_size=size
    )


def inverted(dataset, per, size=4, seed=3):
    """For every batch and row whether it was inverted, which happens to a quarter."""
    steps = [v1.Resize((SIDE, SIDE)), v1.RandomInvert(0.25)]
    batches = loader(dataset, *steps, per=per, size=size, seed=seed)
    return np.stack([(images[:, 0, 0, 0] > 100).numpy() for images, _ in batches])


def test_a_tiny_batch_shares_its_augmentations_but_not_its_flips(one_image):
    flips = [v1.Resize((SIDE, SIDE)), v1.RandomHorizontalFlip()]
    for images, _ in loader(one_image, *flips, v1.TrivialAugmentWide(), batch=240):
        groups = images.view(-1, 4, 3, SIDE, SIDE).float()
        # Mirroring changes no sum over a row; geometric operations that came after it may.
        assert (groups.std((3, 4)).std(1) < 8).float().mean() > 0.6
    differ = [
        len({bytes(image.numpy()) for image in group}) > 1
        for images, _ in loader(one_image, *flips, batch=240)
        for group in images.view(-1, 4, 3, SIDE, SIDE)
    ]
    assert np.mean(differ) > 0.7  # 1 - 2 / 2**4 of them


@pytest.mark.few(1)
@pytest.mark.parametrize("per", ["sample", "tiny_batch"])
def test_neither_workers_nor_sizes_change_the_draws(one_image, per):
    steps = [v1.RandomResizedCrop(SIDE), v1.RandAugment(), v1.ColorJitter(0.4, 0.4)]
    here = list(loader(one_image, *steps, per=per))
    there = loader(one_image, *steps, per=per, workers=2)
    assert all(equal(a, b) for a, b in zip(here, there, strict=True))
    # Tiny-batches are cut from batches sorted by size once sizes are known; groups are not.
    there.set_epoch(0)
    assert all(equal(a, b) for a, b in zip(here, there, strict=True))


def test_groups_within_a_batch_are_whole(one_image):
    rows = inverted(one_image, "tiny_batch")
    groups = rows.reshape(len(rows), -1, 4)
    assert (groups.all(2) | ~groups.any(2)).all() and groups.any() and not groups.all()
    alone = inverted(one_image, "sample").reshape(len(rows), -1, 4)
    assert not (alone.all(2) | ~alone.any(2)).all()


@pytest.mark.few(1)
@pytest.mark.parametrize(("per", "size"), [("sample", 4), ("tiny_batch", 4), ("tiny_batch", 8)])
def test_an_operation_comes_up_as_often_but_in_larger_lots(one_image, per, size):
    """Section 4.3 of FusionFlow.

    Of a mini-batch of B samples, X get an operation of probability p. Drawn per sample, X is
    binomial: mean B p, variance B p (1 - p). Drawn once per tiny-batch of b samples, X is b times a
    binomial of B / b: the mean is the same, the variance b times as large.
    """
    counts = np.concatenate([inverted(one_image, per, size, seed).sum(1) for seed in range(15)])
    batch, probability = 48, 0.25
    variance = batch * probability * (1 - probability) * (1 if per == "sample" else size)
    n = len(counts)
    assert abs(counts.mean() - batch * probability) < 4 * np.sqrt(variance / n)
    # The sample variance's own deviation, as for a normal distribution and a bit.
    assert abs(counts.var(ddof=1) / variance - 1) < 5 * np.sqrt(2 / (n - 1))


def test_a_resumed_epoch_has_the_same_groups(one_image):
    steps = [v1.RandomResizedCrop(SIDE), v1.RandAugment()]
    whole = list(loader(one_image, *steps, workers=2))
    first = loader(one_image, *steps, workers=2)
    iterator = iter(first)
    for _ in range(7):
        next(iterator)
    rest = loader(one_image, *steps, workers=1)
    rest.load_state_dict(first.state_dict())
    assert all(equal(a, b) for a, b in zip(whole[7:], rest, strict=True))


def test_other_values_are_refused(one_image):
    with pytest.raises(ValueError, match="augment_per"):
        FusionLoader(one_image, augment_per="batch")
    assert FusionLoader(one_image).augment_per == "sample"
    assert torch.is_tensor(next(iter(loader(one_image)))[0])


class Draws:
    """Samples that are nothing but a draw."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.rand(())


def test_a_subset_s_samples_draw_each_for_itself():
    subset = torch.utils.data.Subset(Draws(), range(8))
    made = [
        torch.cat(list(FusionLoader(dataset, 4, num_workers=1, seed=3, tiny_batch_size=size)))
        for dataset, size in ((subset, 2), (subset, 4), (Draws(), 4))
    ]
    assert torch.equal(made[0], made[1]) and torch.equal(made[0], made[2])

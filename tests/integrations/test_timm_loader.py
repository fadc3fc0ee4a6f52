"""timm's loaders over FusionLoader."""

import pytest
import torch
from support.batches import same_batches

timm_data = pytest.importorskip("timm.data", reason="pip install timm")

from timm.data import FastCollateMixup  # noqa: E402
from timm.data.loader import PrefetchLoader, fast_collate  # noqa: E402

from fusionloader import FusionLoader, WorkerPool  # noqa: E402
from fusionloader.addons.integrations.timm import create_loader  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture
def dataset(image_folder):
    return timm_data.create_dataset("", str(image_folder))


def arguments(workers=2, **others):
    return {
        "input_size": (3, 32, 32),
        "batch_size": 8,
        "num_workers": workers,
        "device": CPU,
    } | others


def test_timms_arguments_make_a_fusionloader(dataset):
    loader = create_loader(dataset, **arguments(), is_training=True, auto_augment="rand-m9", seed=3)
    assert isinstance(loader, FusionLoader) and loader.seed == 3
    assert "native" in loader.explain() and "in Python" not in loader.explain()
    images, targets = next(iter(loader))
    assert images.shape == (8, 3, 32, 32) and images.dtype == torch.float32
    assert targets.dtype == torch.int64
    loader.close()


def test_evaluation_gives_timms_batches(dataset):
    theirs = timm_data.create_loader(dataset, **arguments(0), use_prefetcher=False)
    expected = list(theirs)
    ours = create_loader(dataset, **arguments())
    for (image, target), (wanted, wanted_target) in zip(ours, expected, strict=True):
        assert torch.equal(target, wanted_target)
        assert (image - wanted).abs().max() < 1e-5


def test_the_loader_of_many_epochs_ends_its_epochs(dataset):
    ours = create_loader(dataset, **arguments(), use_multi_epochs_loader=True)
    for _ in range(2):
        assert len(list(ours)) == len(ours) == len(create_loader(dataset, **arguments()))
    ours.close()


def test_timms_loaders_may_share_a_pool(dataset):
    expected = list(create_loader(dataset, **arguments()))
    few = {name: value for name, value in arguments().items() if name != "num_workers"}
    with WorkerPool(2) as pool:
        assert same_batches(expected, list(create_loader(dataset, **few, pool=pool)))
        with pytest.raises(ValueError, match="num_workers is 3, and the pool has 2 workers"):
            create_loader(dataset, **arguments(3), pool=pool)


def test_mixup_sees_the_whole_mini_batch(dataset):
    mixup = FastCollateMixup(mixup_alpha=1.0, num_classes=2)
    loader = create_loader(dataset, **arguments(), is_training=True, collate_fn=mixup)
    assert isinstance(loader, PrefetchLoader) and loader.mixup_enabled
    assert isinstance(loader.loader, FusionLoader)
    images, targets = next(iter(loader))
    assert images.shape == (8, 3, 32, 32) and targets.shape == (8, 2)


def test_the_prefetcher_changes_no_batch_of_ours(train_set):
    loader = FusionLoader(train_set, 8, num_workers=2, seed=1, persistent_workers=True)
    before = [(image.clone(), target) for image, target in loader]
    loader.set_epoch(0)
    list(PrefetchLoader(loader, device=CPU))
    loader.set_epoch(0)
    assert same_batches(before, [tuple(batch) for batch in loader])
    loader.close()


def test_scheduled_sizes_are_opaque_indices(dataset):
    loader = create_loader(
        dataset,
        **arguments(),
        is_training=True,
        input_size_choices=[24, 32],
        batch_size_choices=[8, 4],
    )
    sizes = {(len(images), images.shape[-1]) for images, _ in loader}
    assert sizes <= {(8, 24), (4, 32)} and sizes


def test_fast_collate_serves_whole_batches(dataset):
    loader = create_loader(dataset, **arguments(), collate_fn=fast_collate)
    assert sum(len(images) for images, _ in loader) == 40

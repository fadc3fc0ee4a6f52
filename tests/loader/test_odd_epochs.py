"""Ends that are asked for again, empty mini-batches, no length, changes in mid-epoch: as torch."""

import copy
import io

import pytest
import torch
from PIL import Image
from support.batches import equal, same_batches
from support.datasets import MadeRows
from support.images import eval_transform, train_transform
from torch.utils.data import DataLoader, Dataset, TensorDataset
from torchvision import transforms as v1

from fusionloader import FusionLoader


def dataset_of(kind, eval_set):
    if kind == "compiled":
        return eval_set
    return (TensorDataset if kind == "gathered" else MadeRows)(torch.arange(6.0))


def words(batch):
    return [str(sample) for sample in batch]


@pytest.mark.few(8)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", ["compiled", "gathered", "rows", "whole"])
def test_an_epoch_counts_once_however_often_its_end_is_asked_for(
    eval_set, workers, persistent, kind
):
    dataset = dataset_of(kind, eval_set)
    collate = words if kind == "whole" else None
    persistent = persistent and workers > 0
    with FusionLoader(
        dataset, 4, num_workers=workers, collate_fn=collate, persistent_workers=persistent
    ) as loader:
        iterator = iter(loader)
        list(iterator)
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(iterator)
        assert loader.stats().epochs == 1
        list(loader)
        assert loader.stats().epochs == 2


@pytest.mark.parametrize("kind", ["compiled", "gathered", "rows", "whole"])
def test_an_epoch_is_numbered_after_its_persistent_workers_have_begun_it(eval_set, kind):
    dataset = dataset_of(kind, eval_set)
    with FusionLoader(
        *(dataset, 4),
        num_workers=1,
        collate_fn=words if kind == "whole" else None,
        persistent_workers=True,
    ) as loader:
        for epoch in range(2):  # as Accelerate and Lightning do
            iterator = iter(loader)
            loader.set_epoch(epoch + 3)
            assert len(list(iterator)) == len(loader)


BATCHES = [[], [0, 1], [], [2], []]


def results(loader):
    """Batches and the types of errors, in the order in which they come."""
    found, iterator = [], iter(loader)
    while True:
        try:
            found.append(next(iterator))
        except StopIteration:
            return found
        except Exception as error:
            found.append(type(error).__name__)


@pytest.mark.few(5)
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("kind", "on_error"),
    [
        ("compiled", "raise"),
        ("compiled", "skip"),
        ("gathered", "raise"),
        ("rows", "raise"),
        ("rows", "skip"),
    ]
    + [("whole", "raise")],
)
def test_an_empty_mini_batch_is_torchs_error_at_its_place(eval_set, workers, kind, on_error):
    dataset = dataset_of(kind, eval_set)
    given = {"batch_sampler": BATCHES, "num_workers": workers}
    if kind == "whole":
        given["collate_fn"] = words
    theirs = results(DataLoader(dataset, **given))
    ours = results(FusionLoader(dataset, **given, on_error=on_error))
    assert len(theirs) == 5 and (kind == "whole" or theirs[0] == "IndexError")
    assert all(map(equal, theirs, ours)) and len(ours) == 5


class Endless(Dataset):
    """Encoded images by any number; how many there are it does not say."""

    target_transform = None

    def __init__(self, transform):
        self.transform = transform
        buffer = io.BytesIO()
        Image.linear_gradient("L").convert("RGB").save(buffer, "PNG")
        self.encoded = buffer.getvalue()

    def read_encoded(self, index):
        return (b"" if index == 9 else self.encoded), index

    def __getitem__(self, index):
        encoded, target = self.read_encoded(index)
        return self.transform(Image.open(io.BytesIO(encoded)).convert("RGB")), target


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_need_not_know_its_length(workers):
    dataset = Endless(eval_transform())
    given = {"batch_size": 2, "sampler": [3, 1, 4, 1, 5]}
    ours = FusionLoader(dataset, **given, num_workers=workers)
    assert ours.explain().count("python") == 1  # its reading
    assert same_batches(DataLoader(dataset, **given), ours)


@pytest.mark.parametrize("workers", [0, 1])
def test_there_is_no_substitute_in_a_dataset_of_unknown_length(workers):
    dataset = Endless(eval_transform())
    given = {"sampler": [3, 9], "on_error": "substitute", "num_workers": workers}
    found = results(FusionLoader(dataset, 1, **given))
    assert len(found) == 2 and found[1] == "UnidentifiedImageError"


class Negative:
    def __call__(self, image):
        return -v1.functional.to_tensor(image.resize((32, 32)))


def _other(dataset):
    dataset.transform = v1.Compose([v1.Resize(30), v1.CenterCrop(20), v1.PILToTensor()])


def _value(dataset):
    dataset.transform.transforms[1].size = (8, 12)


def _list(dataset):
    dataset.transform.transforms.pop()


def _targets(dataset):
    dataset.target_transform = str


def _python(dataset):
    dataset.transform = Negative()


def _nothing_compiled(dataset):
    dataset.loader = lambda path: Image.new("RGB", (40, 40))


@pytest.mark.parametrize("change", [_other, _value, _list, _targets, _python, _nothing_compiled])
def test_a_change_in_mid_epoch_is_seen_in_the_next_batch(image_folder, change):
    from torchvision.datasets import ImageFolder

    found = []
    for kind in (DataLoader, FusionLoader):
        dataset = ImageFolder(str(image_folder), eval_transform())
        batches = []
        for batch in kind(dataset, 16):
            batches.append(batch)
            if len(batches) == 1:
                change(dataset)
        found.append(batches)
    assert all(map(equal, *found))
    assert not equal(
        found[1][1], list(FusionLoader(ImageFolder(str(image_folder), eval_transform()), 16))[1]
    )


class TwoPhases(Dataset):
    """Which of its transforms it applies depends on a number."""

    def __init__(self, inner):
        self.inner, self.phase, self.early = inner, 1, eval_transform()
        inverted = v1.RandomApply([v1.Compose([v1.RandomInvert(p=1.0)])], p=1.0)
        self.late = v1.Compose([v1.Compose([inverted]), eval_transform()])

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        image, target = self.inner[index]
        image = self.early(image) if self.phase == 1 else self.late(image)
        return image, target


def _deep_value(dataset):
    applied = dataset.late.transforms[0].transforms[0]
    applied.transforms[0].transforms[0].p = 0.0


@pytest.mark.parametrize(
    ("first_phase", "change"),
    [(1, lambda dataset: setattr(dataset, "phase", 2)), (2, _deep_value)],
    ids=["a number of the dataset", "a value deep in a transform"],
)
def test_what_a_plan_depends_on_may_change_in_mid_epoch(image_folder, first_phase, change):
    from torchvision.datasets import ImageFolder

    found = []
    for kind in (DataLoader, FusionLoader):
        dataset = TwoPhases(ImageFolder(str(image_folder)))
        dataset.phase = first_phase
        loader = kind(dataset, 16)
        batches = iter(loader)
        found.append([next(batches)])
        change(dataset)
        found[-1] += batches
    assert "python" not in loader.explain()
    assert all(map(equal, *found))


def test_draws_go_on_as_they_were_after_a_change(train_set):
    """What a sample draws depends on its index, not on when the transform was replaced."""
    expected = list(FusionLoader(train_set, 8, seed=3))
    iterator = iter(FusionLoader(train_set, 8, seed=3))
    first = next(iterator)
    train_set.transform = train_transform()
    assert all(map(equal, expected, [first, *iterator]))


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "persistent_workers": True}])
def test_a_copy_is_iterated_without_a_change_of_the_original(options):
    loader = FusionLoader(MadeRows(torch.arange(6.0)), 2, **options)
    iterator = iter(loader)
    first, before = next(iterator), loader.state_dict()
    other = copy.copy(loader)
    batches = list(other)
    assert other.batch_size == 2 and len(batches) == 3
    assert loader.state_dict() == before
    assert same_batches([first, *iterator], batches)

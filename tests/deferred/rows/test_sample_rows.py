"""Tensors that are made in their rows, and user code that keeps them."""

import numpy as np
import pytest
import torch
from PIL import Image
from support.images import photo
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.transforms import v2

from fusionloader import FusionLoader
from fusionloader.data.deferred.rows import sample_rows

SIDE, COUNT = 128, 32
STEPS = transforms.Compose([transforms.CenterCrop(SIDE), transforms.ToTensor()])
WHOLE = v2.Compose([v2.CenterCrop(SIDE), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


class Files:
    """Photographs; ``use`` makes a sample of an image and of the dataset's own state."""

    def __init__(self, paths, use):
        self.paths, self.use, self.kept = paths, use, {}

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, index):
        image = Image.open(self.paths[index]).convert("RGB")
        return self.use(self, index, image)


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(5)
    made = []
    for number in range(COUNT):
        made.append(str(folder / f"{number}.jpg"))
        photo(rng, 150, 140).save(made[-1])
    return made


def plain(dataset, index, image):
    return STEPS(image), index


def of_another_order(dataset, index, image):
    first, second = STEPS(image), STEPS(image.transpose(Image.Transpose.ROTATE_180))
    return {"second": second, "first": first, "index": index}


def of_an_intermediate(dataset, index, image):
    return STEPS(image) * 2 - 1, index


def of_the_second(dataset, index, image):
    STEPS(image)
    return STEPS(image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)), index


def changed_in_place(dataset, index, image):
    return STEPS(image).mul_(2).sub_(1), index


def of_v2(dataset, index, image):
    return WHOLE(image), index


def turned(dataset, index, image):
    """A view of the row's own memory, in another order."""
    return STEPS(image).transpose(1, 2), index


def turned_twice(dataset, index, image):
    tensor = STEPS(image)
    return tensor.transpose(1, 2), tensor, tensor.numpy().swapaxes(0, 1)


def made_of_another(dataset, index, image):
    return STEPS(image), STEPS(image)[:, ::2], index


def some_as_arrays(dataset, index, image):
    return STEPS(image).numpy(), index


def returned_again(dataset, index, image):
    """A cache of samples, each returned many times."""
    key = index % 5
    if key not in dataset.kept:
        dataset.kept[key] = STEPS(image)
    return dataset.kept[key], index


def kept_as_view(dataset, index, image):
    tensor = STEPS(image)
    dataset.kept[index] = tensor[0]
    return tensor, index


def kept_as_array(dataset, index, image):
    tensor = STEPS(image)
    dataset.kept[index] = tensor.numpy()
    return tensor, index


def kept_by_dlpack(dataset, index, image):
    tensor = STEPS(image)
    dataset.kept[index] = torch.utils.dlpack.to_dlpack(tensor)
    return tensor, index


def kept_and_overwritten(dataset, index, image):
    """What the dataset has kept is destroyed long after it was returned."""
    tensor = STEPS(image)
    dataset.kept[index] = tensor.detach()
    old = [each for each in dataset.kept if (index - each) % COUNT > 16]
    for each in old:
        dataset.kept.pop(each).fill_(-1)
    return tensor, index


def checked(dataset, index, image):
    """What was kept is what it was."""
    tensor = STEPS(image)
    good = all(torch.equal(each, copy) for each, copy in dataset.kept.values())
    if index % 7 == 0:
        dataset.kept[index] = tensor, tensor.clone()
    return tensor, good


def of_another_shape_later(dataset, index, image):
    """Some batches do not fit the layout of the first, and are sent."""
    tensor = STEPS(image)
    return (tensor[:, :50] if index >= 24 else tensor), index


GIVEN_BACK = (
    plain,
    of_another_order,
    of_an_intermediate,
    of_the_second,
    changed_in_place,
    of_v2,
    turned,
    turned_twice,
    made_of_another,
    some_as_arrays,
)
KEPT = (returned_again, kept_as_view, kept_as_array, kept_by_dlpack, kept_and_overwritten, checked)


def all_of(uses):
    """Returns one use that does all, so that one loader shows them."""

    def use(dataset, index, image):
        found = {}
        for each in uses:
            dataset.kept = dataset.__dict__.setdefault(each.__name__, {})
            found[each.__name__] = each(dataset, index, image)
        return found

    return use


def assert_equal(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            assert_equal(one[name], other[name])
    else:
        for each, expected in zip(one, other, strict=True):
            assert_equal(each, expected)


def collated_of(paths, use, size=8):
    """Compares two epochs with torch's; returns how tensors were collated."""
    expected, dataset = [], Files(paths, use)
    expected = [list(DataLoader(dataset, size)) for _ in range(2)]  # in one process, as by a worker
    loader = FusionLoader(Files(paths, use), size, num_workers=1, persistent_workers=True)
    found = [list(loader) for _ in range(2)]  # kept while all others are made
    assert_equal(found, expected)
    return loader.stats().deferred_images["collated"]


def test_tensors_are_made_in_their_rows(paths):
    collated = collated_of(paths, all_of([of_another_order, changed_in_place, of_v2]))
    assert collated["in place"] > 4 * COUNT and "kept by user code" not in collated


def test_samples_may_be_views_of_rows_and_more(paths):
    collated = collated_of(paths, all_of(GIVEN_BACK))
    assert collated["in place"] and collated["copied"]


def test_some_batches_may_not_fit(paths):
    collated_of(paths, of_another_shape_later)


@pytest.mark.parametrize("most", [1.0, sample_rows._MOST_LOST])
def test_what_user_code_keeps_is_its_own(paths, most, monkeypatch):
    monkeypatch.setattr(sample_rows, "_MOST_LOST", most)  # workers that are forked have it
    assert collated_of(paths, all_of(KEPT))["kept by user code"]


def test_tensors_that_are_often_kept_are_made_elsewhere(paths):
    loader = FusionLoader(Files(paths, kept_as_view), 8, num_workers=1, persistent_workers=True)
    counted = []
    for _ in range(3):
        list(loader)
        counted.append(loader.stats().deferred_images["collated"]["kept by user code"])
    assert 0 < counted[-1] < COUNT and counted[-1] == counted[-2]

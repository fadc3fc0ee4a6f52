"""How loaders are served, each by one route, which explain() prints and the iterator is made by."""

import io
from collections import UserDict

import pytest
import torch
from PIL import Image
from support.datasets import Counting, Nested, Numbers, Stream, Words
from support.images import eval_transform, train_transform
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    SequentialSampler,
    StackDataset,
    Subset,
    TensorDataset,
)
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, GpuWorker
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.route.route import Learned, find_route

RESIZED = v1.Compose([v1.Resize(40), v1.ToTensor()])  # to various widths
WITH_TAIL = v1.Compose([train_transform(), lambda image: image])


class WithState(Numbers):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class Buffers(torch.nn.Module, Numbers):
    pass


class Table(UserDict, WithState):
    pass


class Lists(Numbers):
    def __getitems__(self, indices):
        return [self[index] for index in indices]


class Encoded:
    """Reads bytes, and leaves the rest to a plan."""

    transform = train_transform()

    def __len__(self):
        return 4

    def read_encoded(self, index):
        file = io.BytesIO()
        Image.new("RGB", (64, 48)).save(file, "JPEG")
        return file.getvalue(), index

    def __getitem__(self, index):
        return self.transform(Image.open(io.BytesIO(self.read_encoded(index)[0]))), index


class WordTargets(ImageFolder):
    def __init__(self, root, transform):
        super().__init__(root, transform)
        self.samples = [(path, str(target)) for path, target in self.samples]


class OwnImages(ImageFolder):
    def __getitem__(self, index):
        return super().__getitem__(index)


def images(kind=ImageFolder, transform=None):
    return lambda root: kind(root, transform or train_transform())


def two_parts(root):
    return ConcatDataset([images()(root), images(transform=eval_transform())(root)])


def always(dataset):
    return lambda root: dataset


TWO = {"num_workers": 2}
COLLATED = {"collate_fn": list}
SKIP = {"on_error": "skip"}
ROUTES = [
    # dataset, options: way, and a part of why
    (images(), TWO, "native workers", ""),
    (images(transform=eval_transform()), TWO, "native workers", ""),
    (lambda root: Subset(images()(root), range(8)), TWO, "native workers", ""),
    (images(), TWO | {"shuffle": True}, "native workers", ""),
    (images(), TWO | {"persistent_workers": True}, "native workers", ""),
    (images(), TWO | {"pin_memory": True}, "native workers", ""),
    (images(), TWO | SKIP, "native workers", ""),
    (images(), TWO | {"worker_init_fn": print}, "native workers", ""),
    (images(), TWO | {"gpu_worker": GpuWorker(device="cpu")}, "native workers", ""),
    (images(), TWO | {"multiprocessing_context": "spawn"}, "native workers", ""),
    (images(transform=WITH_TAIL), TWO, "Python workers", "a part of the plan runs in Python"),
    (images(transform=RESIZED), TWO, "Python workers", "a part of the plan runs in Python"),
    (images(WordTargets), TWO, "Python workers", "the targets are not integers"),
    (two_parts, TWO, "Python workers", "its parts have a plan each"),
    (always(Encoded()), TWO, "Python workers", "the dataset reads the bytes"),
    (images(OwnImages), TWO, "Python workers", "the samples are made by Python code"),
    (always(Numbers()), TWO, "Python workers", "the samples are made by Python code"),
    (always(Nested()), TWO, "Python workers", "the samples are made by Python code"),
    (always(Words()), TWO, "Python workers", "the samples are made by Python code"),
    (always(TensorDataset(torch.ones(8))), TWO, "gathered", ""),
    (always(TensorDataset(torch.ones(8))), {}, "gathered", ""),
    (always(torch.ones(8)), TWO | SKIP, "gathered", ""),
    (always(Subset(StackDataset(a=torch.ones(8)), range(4))), TWO, "gathered", ""),
    (
        always(TensorDataset(torch.ones(8))),
        TWO | {"worker_init_fn": print},
        "Python workers",
        "Pyt",
    ),
    (always(TensorDataset(torch.ones(8))), TWO | COLLATED, "whole batches", "a custom collate_fn"),
    (always(Numbers()), TWO | SKIP, "Python workers", "the samples are made by Python code"),
    (always(Numbers()), TWO | {"sampler": Counting()}, "Python workers", "made by Python code"),
    (always(Numbers()), TWO | COLLATED, "whole batches", "a custom collate_fn"),
    (always(Numbers()), TWO | COLLATED | SKIP, "whole batches", "a custom collate_fn"),
    (images(), TWO | COLLATED, "whole batches", "a custom collate_fn"),
    (images(), TWO | {"batch_size": None}, "whole batches", "batch_size=None"),
    (always(Numbers()), TWO | {"batch_size": None}, "whole batches", "batch_size=None"),
    (always(Lists()), TWO, "whole batches", "__getitems__ of Lists"),
    (always(Subset(Lists(), range(8))), TWO, "whole batches", "__getitems__ of Lists"),
    (always(Stream([8, 8])), TWO, "own passes", "an IterableDataset"),
    (always(Stream([8, 8])), TWO | COLLATED, "own passes", "an IterableDataset"),
    (always(Stream([8, 8])), TWO | {"batch_size": None}, "own passes", "an IterableDataset"),
    (always(WithState()), TWO, "own passes", "a dataset with a state_dict()"),
    (always(Buffers()), TWO, "Python workers", "the samples are made by Python code"),
    (always(Table()), TWO, "Python workers", "the samples are made by Python code"),
    (images(), {}, "in process", ""),
    (images(), SKIP, "in process", ""),
    (images(transform=WITH_TAIL), {}, "in process", ""),
    (always(Numbers()), {}, "torch's loop", ""),
    (always(Numbers()), SKIP, "in process", ""),
    (always(Numbers()), COLLATED, "torch's loop", "a custom collate_fn"),
    (always(Numbers()), COLLATED | SKIP, "in process", "a custom collate_fn"),
    (images(), COLLATED, "torch's loop", "a custom collate_fn"),
    (always(Lists()), {}, "torch's loop", "__getitems__ of Lists"),
    (always(Stream([8])), {}, "torch's loop", "an IterableDataset"),
    (always(WithState()), {}, "torch's loop", "a dataset with a state_dict()"),
]


@pytest.mark.parametrize(("make", "options", "way", "why"), ROUTES)
def test_a_loader_has_one_route_and_says_which(make, options, way, why, image_folder):
    loader = FusionLoader(make(str(image_folder)), **({"batch_size": 4} | options))
    route = find_route(LoaderOptions.of(loader), Learned())
    assert route.way == way
    assert why in (route.why_whole or route.why_python)
    assert bool(why) == bool(route.why_whole or route.why_python)
    explained = loader.explain()
    assert repr(loader).endswith(f"num_workers={loader.num_workers}, {way}>")
    if route.why_whole and way != "in process":
        assert why in explained.splitlines()[0]
    if why in ("the targets are not integers", "its parts have a plan each"):
        assert f"in Python workers: {why}" in explained


def test_batches_of_a_batch_sampler_take_the_same_route(image_folder):
    dataset = images()(str(image_folder))
    sampler = BatchSampler(SequentialSampler(dataset), 4, drop_last=False)
    loader = FusionLoader(dataset, batch_sampler=sampler, num_workers=2)
    assert find_route(LoaderOptions.of(loader), Learned()).way == "native workers"


def alter(worker):
    torch.utils.data.get_worker_info().dataset.transform = eval_transform()


def test_what_an_iterator_has_found_out_decides_on_the_next_one_s_route(image_folder):
    loader = FusionLoader(Words(), 3, num_workers=1)
    assert repr(loader).endswith("Python workers>")
    next(iter(loader))
    assert repr(loader).endswith("whole batches>")
    loader = FusionLoader(images()(str(image_folder)), 4, num_workers=1, worker_init_fn=alter)
    assert repr(loader).endswith("native workers>")
    next(iter(loader))
    assert repr(loader).endswith("Python workers>")
    assert "in Python workers: worker_init_fn changes the dataset in workers" in loader.explain()

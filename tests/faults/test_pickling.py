"""An argument that cannot be pickled is named in the error, when workers are spawned."""

import pytest
import torch
from torch.utils.data import Dataset
from torchvision import transforms

from fusionloader import FusionLoader


class Holder(Dataset):
    def __init__(self, transform=None):
        self.transform = transform

    def __len__(self):
        return 4

    def __getitem__(self, index):
        value = torch.zeros(3)
        return value if self.transform is None else self.transform(value)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_error_names_the_lambda_in_the_transforms(method):
    chain = transforms.Compose([transforms.Normalize([0.0], [1.0]), transforms.Lambda(lambda x: x)])
    loader = FusionLoader(Holder(chain), 2, num_workers=1, multiprocessing_context=method)
    with pytest.raises(Exception, match=r"dataset\.transform\.transforms\[1\]\.lambd cannot"):
        iter(loader)


def test_the_error_names_the_file_that_a_dataset_holds_open(tmp_path):
    dataset = Holder()
    dataset.cache = {"index": (tmp_path / "file").open("w")}
    loader = FusionLoader(dataset, 2, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(TypeError, match=r"dataset\.cache\['index'\] cannot.*in the worker"):
        iter(loader)
    dataset.cache["index"].close()


@pytest.mark.parametrize("name", ["collate_fn", "worker_init_fn"])
def test_the_error_names_the_argument(name):
    arguments = {name: lambda x: x}
    loader = FusionLoader(Holder(), 2, num_workers=1, multiprocessing_context="spawn", **arguments)
    with pytest.raises(Exception, match=f"^{name} cannot be sent.*'spawn'"):
        iter(loader)


def test_forked_workers_take_lambdas():
    loader = FusionLoader(Holder(lambda x: x + 1), 2, num_workers=1, multiprocessing_context="fork")
    assert [batch.sum().item() for batch in loader] == [6.0, 6.0]


def test_an_error_that_the_dataset_raises_stays_as_it_is():
    class Broken(Holder):
        def __len__(self):
            raise TypeError("no length today")

    loader = FusionLoader(Broken(), 2, num_workers=0, sampler=[0, 1], collate_fn=list)
    with pytest.raises(AttributeError, match="missing"):
        loader.dataset.transform = lambda x: x.missing
        next(iter(loader))

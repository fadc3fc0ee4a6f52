"""Subclasses of the loader whose methods Python calls by itself."""

import pytest
from torch.utils.data import DataLoader, Dataset, IterableDataset

from fusionloader import FusionLoader


class Numbers(Dataset):
    is_closed = False

    def __len__(self):
        return 6

    def __getitem__(self, index):
        assert not self.is_closed
        return index

    def close(self):
        self.is_closed = True


class Stream(Numbers, IterableDataset):
    def __iter__(self):
        return iter(range(6))


class Owning:
    def __del__(self):
        self.dataset.close()


class Delegating:
    def __getattr__(self, name):
        return getattr(self.dataset, name)


class NeverCopied:
    def __getstate__(self):
        raise TypeError("it is not copied")


@pytest.mark.parametrize(
    "options", [{}, {"num_workers": 1}, {"num_workers": 1, "collate_fn": list}]
)
@pytest.mark.parametrize("dataset", [Numbers, Stream])
@pytest.mark.parametrize("mixin", [Owning, Delegating, NeverCopied])
@pytest.mark.few(6)
def test_epochs_call_nothing_of_a_subclass_that_dataloader_does_not(mixin, dataset, options):
    def epochs(base):
        loader = type(mixin.__name__, (mixin, base), {})(dataset(), 2, **options)
        found = []
        for epoch in range(2):
            iterator = iter(loader)
            if hasattr(loader, "set_epoch"):
                loader.set_epoch(epoch)  # begins the epoch again
            found += [list(map(int, batch)) for batch in iterator]
        return found

    assert epochs(FusionLoader) == epochs(DataLoader)

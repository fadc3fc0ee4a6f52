"""A training process that has more files open than select() can count."""

import resource

import pytest
import torch
from torch.utils.data import Dataset

from fusionloader import FusionLoader, WorkerPool

MORE_THAN_SELECT_KNOWS = 1100
ROOM = 1500


class Odd(Dataset):
    """Samples of which some do not fit the layout, and are larger than a pipe."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        return torch.full((200, 200), index) if index // 4 % 2 else torch.tensor(index)


@pytest.fixture
def many_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < ROOM:
        pytest.skip(f"a process may have {hard} files open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, ROOM), hard))
    files = [open("/dev/null") for _ in range(MORE_THAN_SELECT_KNOWS)]  # noqa: SIM115
    yield
    for file in files:
        file.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("whose", ["own", "pool"])
def test_large_messages_are_waited_for(whose):
    with WorkerPool(2) as pool:
        workers = {"num_workers": 2} if whose == "own" else {"pool": pool}
        batches = list(FusionLoader(Odd(), 4, prefetch_factor=8, timeout=120, **workers))
    assert [batch.flatten()[0].item() for batch in batches] == list(range(0, 48, 4))


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_of_a_plan_are_started(train_set, method):
    loader = FusionLoader(train_set, 4, num_workers=2, multiprocessing_context=method, timeout=120)
    assert len(list(loader)) == 10

"""What people met with DataLoader, as one test each where no other file has it."""

import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import same_batches
from torch.utils.data import Dataset

from fusionloader import FusionLoader

ROOT = Path(__file__).parents[2]

MANY_FILES = """
import resource, torch
from torch.utils.data import TensorDataset
from fusionloader import FusionLoader

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
if __name__ == "__main__":
    batches = list(FusionLoader(TensorDataset(torch.arange(2000)), 4, num_workers=2))
    assert torch.equal(torch.cat([batch for batch, in batches]), torch.arange(2000))
    print(len(batches))
"""


def test_keeping_every_batch_opens_no_file_for_each(tmp_path):
    script = tmp_path / "many.py"
    script.write_text(MANY_FILES)
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    found = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, env=environment
    )
    assert found.stdout.strip() == "500", found.stderr[-2000:]


class NumpyNoise(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([np.random.randint(1 << 30), index])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_numpys_generator_repeats_nothing_between_workers_and_epochs(method):
    loader = FusionLoader(NumpyNoise(), 4, num_workers=2, multiprocessing_context=method)
    drawn = [int(noise) for _ in range(2) for batch in loader for noise in batch[:, 0]]
    assert len(set(drawn)) == 80


def test_results_do_not_change_with_the_number_of_workers():
    def loader(workers):
        return FusionLoader(NumpyNoise(), 4, shuffle=True, num_workers=workers, seed=2)

    orders = []
    for workers in (1, 2, 3):
        torch.manual_seed(1)
        orders.append(list(loader(workers)))
    assert same_batches(orders[0], orders[1]) and same_batches(orders[0], orders[2])


def test_epochs_leave_no_descriptor_open():
    loader = FusionLoader(NumpyNoise(), 4, num_workers=2)
    list(loader)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        list(loader)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
    assert before < resource.getrlimit(resource.RLIMIT_NOFILE)[0]

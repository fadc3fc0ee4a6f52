"""Known troubles with DataLoader, as one test each where no other file has it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from support import warm_start
from support.batches import same_batches
from support.images import train_transform
from support.waiting import wait_until
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader
from fusionloader.cli.measure.processes import read_memory

ROOT = Path(__file__).parents[2]

LEFT_UNDER_WAY = """
import sys
from torchvision.datasets import ImageFolder
from support.images import train_transform
from fusionloader import FusionLoader

if __name__ == "__main__":
    dataset = ImageFolder(sys.argv[1], train_transform())
    loader = FusionLoader(dataset, 4, num_workers=1, multiprocessing_context=sys.argv[2])
    iterator = iter(loader)
    batch = next(iterator)
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_script_that_ends_in_mid_epoch_prints_nothing(tmp_path, image_folder, method):
    script = tmp_path / "script.py"
    script.write_text(LEFT_UNDER_WAY)
    found = warm_start.completed(
        *(script, image_folder, method),
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": "/usr/bin:/bin"},
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


class NumpyNoise(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.tensor([np.random.randint(1 << 30), index])


@pytest.mark.parametrize("method", ["fork"])  # which copies a generator's state
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


def test_forked_workers_of_a_plan_copy_nothing_of_a_long_list_of_files(image_folder):
    dataset = ImageFolder(str(image_folder), train_transform(8))
    # Distinct strings, some 50 MB: reading them all counts references, which writes to all pages.
    dataset.samples = [
        ("/" + "./" * (number % 40) + path[1:], 0)
        for number in range(5000)
        for path, _ in dataset.samples
    ]
    order = list(range(0, len(dataset), 97))
    # One worker: of two, one might make nothing before the first look.
    loader = FusionLoader(dataset, 20, sampler=order, num_workers=1, multiprocessing_context="fork")
    iterator = iter(loader)
    for _ in range(10):  # it has seen images of all sizes then
        next(iterator)
    (worker,) = iterator._workers
    before = read_memory(worker.pid).uss
    for _ in range(len(loader) - 15):
        next(iterator)
    assert read_memory(worker.pid).uss - before < 4e6


class WaitsForOthers(Dataset):
    """The first sample is not ready before the others of its mini-batch are."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 0:
            others = self.folder.iterdir
            wait_until(lambda: len(list(others())) == 3, "the other samples are not made")
        (self.folder / str(index)).touch()
        return torch.tensor(index)


def test_a_slow_sample_delays_no_other_sample_of_its_batch(tmp_path):
    loader = FusionLoader(WaitsForOthers(tmp_path), 4, num_workers=2, tiny_batch_size=1)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3]]


class Threads(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return torch.tensor(torch.get_num_threads())


@pytest.mark.parametrize("method", ["fork"])
def test_workers_compute_on_one_thread_each(method):
    loader = FusionLoader(Threads(), 2, num_workers=2, multiprocessing_context=method)
    assert torch.cat(list(loader)).tolist() == [1, 1, 1, 1]

"""What samples cost, one by one."""

import time

import torch

from fusionloader import FusionLoader
from fusionloader.cli.analysis.service import sample_costs


class Remote:
    """Samples that wait for something and compute nothing, and others that only compute."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index % 2:
            time.sleep(0.02)
        else:
            until = time.thread_time() + 0.02
            while time.thread_time() < until:
                pass
        return index


def test_samples_compute_in_one_thread_as_in_a_worker():
    seen = []

    class Threads(Remote):
        def __getitem__(self, index):
            seen.append(torch.get_num_threads())
            return index

    before = torch.get_num_threads()
    sample_costs(FusionLoader(Threads(), 4), dict.fromkeys(range(20), 0))
    assert set(seen) == {1} and torch.get_num_threads() == before


def test_computing_and_waiting_are_told_apart():
    costs = sample_costs(FusionLoader(Remote(), 4), dict.fromkeys(range(20), 0))
    assert all(each.seconds < 0.01 < 0.02 <= each.waiting + 1e-3 for each in costs[1::2])
    assert all(each.seconds >= 0.02 for each in costs[::2])
    # The kernel says how long others had the core, so it is not taken for waiting.
    assert sorted(each.waiting for each in costs[::2])[5] < 0.01

"""Finished epochs give their shared memory and descriptors back at once, not when gc comes by."""

import gc
import os
from pathlib import Path

import torch

from fusionloader import FusionLoader


class Large:
    def __len__(self):
        return 32

    def __getitem__(self, index):
        return torch.zeros(1 << 17)


def held():
    """Bytes of shared memory that this process has mapped, and its open descriptors."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    spans = [line.split("-", 1) for line in lines if "/memfd:fusionloader-" in line]
    mapped = sum(int(end.split()[0], 16) - int(begin, 16) for begin, end in spans)
    return mapped, len(os.listdir("/proc/self/fd"))


def test_epochs_leave_nothing_even_without_the_garbage_collector():
    loader = FusionLoader(Large(), 8, num_workers=1)
    for _ in loader:
        pass
    gc.collect()
    gc.disable()
    try:
        before = held()
        for _ in range(4):
            for _ in loader:
                assert held()[0] > before[0]
        after = held()
    finally:
        gc.enable()
    assert after[0] <= before[0]
    assert after[1] <= before[1]

"""Loaders of each way of making batches, in scripts that are run in odd places."""

import os
import sys
import textwrap
from pathlib import Path

import torch
from support import warm_start
from torch.utils.data import Dataset, IterableDataset, get_worker_info

HERE = Path(__file__).parent
PATH = [str(folder) for folder in (HERE.parents[1], HERE.parent, HERE)]
KINDS = ("plan", "rows", "stream")
SAMPLES = 40


class Rows(Dataset):
    """Samples of user code that are written into rows of batches."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.full((3, 32, 32), float(index)), index


class Stream(IterableDataset):
    """Samples that torch's own loop reads."""

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for index in range(first, SAMPLES, step):
            yield torch.full((3, 32, 32), float(index)), index


def dataset(kind, root):
    """A dataset whose batches are made in the way that ``kind`` names; ``root`` has images."""
    if kind == "plan":
        from support.images import eval_transform
        from torchvision.datasets import ImageFolder

        return ImageFolder(root, eval_transform())
    return Rows() if kind == "rows" else Stream()


def loader(kind, root, **arguments):
    """A loader with two workers that stay."""
    from fusionloader import FusionLoader

    given = {"batch_size": 4, "num_workers": 2, "persistent_workers": True, **arguments}
    return FusionLoader(dataset(kind, root), **given)


def samples(batches):
    """How many samples there are in batches."""
    return sum(len(targets) for _, targets in batches)


def complete(script, *arguments, begin="", **environment):
    """Runs a script as ``run`` does, and returns how it has ended."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(PATH), **environment}
    code = begin + textwrap.dedent(script)
    return warm_start.completed("-c", code, *map(str, arguments), env=env)


def run(script, *arguments, begin="", **environment):
    """Runs a script, which may import this module, to its end; returns the words it prints.

    ``begin`` comes before it.
    """
    done = complete(script, *arguments, begin=begin, **environment)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-3000:]}"
    sys.stderr.write(done.stderr)
    return done.stdout.split()

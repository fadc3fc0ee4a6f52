"""A script that trains, and an analysis of it that takes no time."""

import textwrap

import pytest

from fusionloader.cli.analysis import scripts
from fusionloader.cli.analysis.run import analyze

HEAD = """
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset
from fusionloader import FusionLoader

class Numbers(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return torch.full((3,), float(index)), index

class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(24.0))
"""


@pytest.fixture
def analyzed(tmp_path):
    """Returns a function that analyzes lines of a script, behind ``Numbers``, ``Stream``."""

    def of(lines, *arguments, seconds=0.005, **options):
        path = tmp_path / "train.py"
        path.write_text(HEAD + textwrap.dedent(lines))
        return analyze(scripts.script(str(path), arguments), path.name, seconds, **options)

    return of

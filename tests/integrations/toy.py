"""What the tests of frameworks share: a tiny corpus and a model."""

import torch
from torch.utils.data import Dataset


class Points(Dataset):
    """``size`` points with their numbers, so that one can tell which were seen."""

    def __init__(self, size=22):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.full((3,), float(index)), index

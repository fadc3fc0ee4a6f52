"""Random draws that are the same in every loader."""

import random

import numpy as np
import torch
from torch.utils.data import Dataset


def seed_everything(seed):
    torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)


class SeededByIndex(Dataset):
    """A dataset whose samples draw the same in whichever process, and in whichever order."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        seed_everything(index)
        return self.dataset[index]


class ListsSeededByIndex(SeededByIndex):
    """The same with ``__getitems__``."""

    def __getitems__(self, indices):
        return [self[index] for index in indices]

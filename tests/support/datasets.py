"""Datasets and a sampler that need no files."""

import collections
import random

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, TensorDataset

Point = collections.namedtuple("Point", "x y")


class Nested(Dataset):
    """Every kind of leaf and container that the default collate knows to have a fixed shape."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return {
            "tensor": torch.full((2, 3), index, dtype=torch.float16),
            "array": np.full(4, index, np.float64),
            "numbers": (index, index * 0.5, index % 2 == 0, np.float32(index)),
            "point": Point(torch.tensor(index), [index]),
        }


class Words(Dataset):
    def __len__(self):
        return 11

    def __getitem__(self, index):
        return {"text": f"word {index}", "label": index}


class Random(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.rand(2), np.random.rand(), random.random(), index


class MadeRows(TensorDataset):
    """Rows of tensors that workers make: no class that a loader knows."""


class Numbers(Dataset):
    def __init__(self, size=24):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.tensor(index)


class Counting(Sampler):
    """Begins where it was told to, and counts its epochs."""

    def __init__(self, size=24):
        self.size = size
        self.position = 0
        self.epoch = 0

    def __iter__(self):
        for position in range(self.position, self.size):
            self.position = position + 1
            yield (position * 5 + self.epoch) % self.size
        self.position = 0
        self.epoch += 1

    def __len__(self):
        return self.size

    def state_dict(self):
        return {"position": self.position, "epoch": self.epoch}

    def load_state_dict(self, state):
        self.position, self.epoch = state["position"], state["epoch"]


class Stream(IterableDataset):
    """Counts on in every worker, and knows where it is."""

    def __init__(self, sizes):
        self.sizes = sizes
        self.position = 0
        self.read = 0

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        number = info.id if info else 0
        while self.position < self.sizes[number]:
            self.position += 1
            self.read += 1
            yield torch.tensor([number, self.position, self.read])
        self.position = 0

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]

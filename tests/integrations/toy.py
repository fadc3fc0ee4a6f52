"""What the tests of frameworks share: a tiny corpus and a model."""

import contextlib
import random
import socket

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


def port():
    """A free port, of those that the kernel gives to nobody who does not ask for it by number."""
    while True:
        number = random.SystemRandom().randrange(20_000, 30_000)
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", number))
            return number

"""Datasets of torchvision that are arrays, with random pixels."""

import numpy as np
import torch
from torchvision import transforms as v1
from torchvision.datasets import CIFAR10, MNIST


def in_memory(family, transform, count=50):
    """A dataset as if it had been downloaded."""
    generator = np.random.default_rng(count)
    dataset = object.__new__(family)
    dataset.transform, dataset.target_transform = v1.Compose(transform), None
    targets = generator.integers(0, 10, count)
    if issubclass(family, MNIST):
        dataset.data = torch.from_numpy(generator.integers(0, 256, (count, 28, 28), np.uint8))
        dataset.targets = torch.from_numpy(targets)
    elif issubclass(family, CIFAR10):
        dataset.data = generator.integers(0, 256, (count, 32, 32, 3), np.uint8)
        dataset.targets = targets.tolist()
    else:
        dataset.data = generator.integers(0, 256, (count, 3, 32, 32), np.uint8)
        dataset.labels = targets
    return dataset

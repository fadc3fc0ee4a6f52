"""What the tests of validation share: a model, points, and how it is evaluated."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SIZE, CLASSES = 8, 4


def model_of(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(SIZE, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(), nn.Linear(16, CLASSES)
    )


def points(count=203, seed=1):
    generator = torch.Generator().manual_seed(seed)
    data = torch.randn(count, SIZE, generator=generator)
    return TensorDataset(data, torch.randint(0, CLASSES, (count,), generator=generator))


def loader_of(count=203, batch_size=10, **options):
    return DataLoader(points(count), batch_size, **options)


def evaluate(model, batches):
    loss, right, count = 0.0, 0, 0
    for data, targets in batches:
        found = model(data)
        loss += nn.functional.cross_entropy(found, targets, reduction="sum").item()
        right += int((found.argmax(1) == targets).sum())
        count += len(targets)
    return {"loss": (loss, count), "accuracy": (right, count), "right": right}


def train(model, steps=3):
    """A few steps, which change parameters and the statistics of BatchNorm."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for data, targets in list(loader_of(60))[:steps]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), targets).backward()
        optimizer.step()


def by_hand(model, loader, parts=1):
    """The metrics that a loop of one's own finds, part by part, on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    model.eval()
    batches = list(loader)
    with torch.no_grad():
        each = [evaluate(model, iter(batches[part::parts])) for part in range(parts)]
    torch.set_num_threads(before)
    count = sum(part["loss"][1] for part in each)
    loss = each[0]["loss"][0]
    for part in each[1:]:
        loss += part["loss"][0]
    right = sum(part["right"] for part in each)
    return {"loss": loss / count, "accuracy": right / count, "right": right}

"""Comparisons of batches."""

import torch


def equal(first, second):
    """Whether two batches are the same: containers, types and every bit."""
    if isinstance(first, torch.Tensor):
        return (
            isinstance(second, torch.Tensor)
            and first.dtype == second.dtype
            and torch.equal(first, second)
        )
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[k], second[k]) for k in first)
    if isinstance(first, (list, tuple)):
        return len(first) == len(second) and all(map(equal, first, second))
    return first == second


def same_batches(first, second):
    first, second = list(first), list(second)
    return len(first) == len(second) and all(map(equal, first, second))

"""Comparisons of batches."""

import numpy as np
import torch


def equal(first, second, tolerance=0.0):
    """Whether two batches are the same: containers, types and every bit, or nearly every one."""
    if type(first) != type(second):  # noqa: E721  a deferred tensor has an equal type
        return False
    if isinstance(first, torch.Tensor):
        if first.dtype != second.dtype or first.shape != second.shape:
            return False
        near = tolerance and bool((first - second).abs().max() <= tolerance)
        return near or torch.equal(first, second)
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and np.array_equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(
            equal(first[key], second[key], tolerance) for key in first
        )
    if isinstance(first, (list, tuple)):
        pairs = zip(first, second, strict=False)
        return len(first) == len(second) and all(equal(*pair, tolerance) for pair in pairs)
    return bool(first == second)


def next_in_time(iterator):
    """The next batch, however often a busy machine is too late for the loader's ``timeout``."""
    while True:
        try:
            return next(iterator)
        except RuntimeError as late:
            if "timed out" not in str(late):
                raise


def same_batches(first, second):
    first, second = list(first), list(second)
    return len(first) == len(second) and all(map(equal, first, second))

"""Calls once what deliveries call of torch, before a worker is forked.

The first call of an operation in a process initializes a static variable of torch, without the GIL.
A worker that another thread forks meanwhile has a variable whose initialization never ends: it
waits for ever when it calls the same operation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils import collate as torch_collate

from fusionloader.engine.delivery.host_batches import without_rows
from fusionloader.system.own_thread import run_in_own_thread
from fusionloader.transforms.executors.batch_transport import sent_by_value
from fusionloader.transforms.executors.layout import TEXT_LENGTH, Branch, Layout, Leaf

# By hand, and collated by torch's own functions: ``default_collate_fn_map`` may have the user's.
_LAYOUT = Layout(
    Branch(
        dict,
        ("tensor", "array", "number", "text"),
        (
            Leaf("tensor", (2, 2), torch.float32),
            Leaf("array", (2,), torch.float64),
            Leaf("scalar", (), torch.int64, int),
            Leaf("text", (TEXT_LENGTH.itemsize + 4,), torch.uint8, str),
        ),
    )
)
_COLLATES: dict[type | tuple[type, ...], Callable[..., Any]] = {
    torch.Tensor: torch_collate.collate_tensor_fn,
    np.ndarray: torch_collate.collate_numpy_array_fn,
    int: torch_collate.collate_int_fn,
    str: torch_collate.collate_str_fn,
}
_is_done = False


def call_once() -> None:
    """Delivers an example as batches are delivered; the caller holds ``processes.starting()``.

    In another thread, because modes are a thread's own: the caller's, such as a default device,
    would change what is called.
    """
    if not _is_done:
        run_in_own_thread(_deliver, "fusionloader-first-calls")


def _deliver() -> None:
    global _is_done
    tensor, part = torch.zeros(2, 2, device="cpu"), torch.zeros(2, device="cpu")[1:]
    sample = {"tensor": tensor, "array": np.zeros(2), "number": 1, "text": "text"}
    with torch.autograd.profiler.record_function("FusionLoader"):  # as in torch's ``__next__``
        memory = (ctypes.c_char * _LAYOUT.batch_bytes(2))()
        without_rows(_LAYOUT.batch(memory, 2, 2), 2, {1})
        torch_collate.collate(_LAYOUT.samples(memory, 2, [0]), collate_fn_map=_COLLATES)
        sent_by_value([sample, part])
    _is_done = True

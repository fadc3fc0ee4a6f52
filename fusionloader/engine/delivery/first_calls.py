"""Calls once what deliveries call of torch, before a worker is forked.

The first call of an operation in a process initializes a static variable of torch, without the GIL.
A worker that another thread forks meanwhile has a variable whose initialization never ends: it
waits for ever when it calls the same operation.
"""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from fusionloader.engine.delivery.host_batches import collate_rest, without_rows
from fusionloader.system.own_thread import run_in_own_thread
from fusionloader.transforms.executors.batch_transport import sent_by_value
from fusionloader.transforms.executors.layout import Layout

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
        layout = Layout.of(sample)
        assert isinstance(layout, Layout)
        memory = (ctypes.c_char * layout.batch_bytes(2))()
        without_rows(layout.batch(memory, 2, 2), 2, {1})
        collate_rest(layout, memory, 2, (), {1}, str)
        sent_by_value([sample, part])
    _is_done = True

"""DALI at work in borrowed memory, by the GPU worker's own pool; needs a device and g++."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from fusionloader.system.gpu_memory import Mapping
from fusionloader.system.gpu_memory import pool as borrowed
from fusionloader.transforms.executors.dali.head import DaliHead
from fusionloader.transforms.executors.dali.memory import borrowing
from fusionloader.transforms.executors.dali.memory.borrowing import release_unused_memory
from fusionloader.transforms.executors.dali.memory.resource_library import build
from fusionloader.transforms.executors.dali.prebuilt import drop_all
from fusionloader.transforms.executors.device.launch_memory import TorchPool
from fusionloader.transforms.executors.device_errors import is_shortage
from support.dali_runs import decode

_WIDTH, _HEIGHT = 4000, 3000
_IMAGES = 8  # which take 288 MB when they are decoded
_LEFT = 64 << 20  # on the device, which is not enough
_WINDOW = (0, 0, _WIDTH, _HEIGHT)


def use_dali(blocks: Sequence[Mapping], device: int = 0) -> dict[str, Any]:
    """Decodes with a full device, without blocks and with them, and returns them.

    How far the pixels are from those in DALI's own memory, what decoding without blocks raised, how
    much was borrowed, and what the return took.
    """
    build()
    pool = TorchPool(device)
    assert borrowing.install(device), "DALI's memory could not be replaced: the log says why"
    file = _an_image()
    head = DaliHead(device, _IMAGES)
    own = _pixels(head, file)
    drop_all()
    release_unused_memory()
    hoard = _all_but(_LEFT, device)
    try:
        _pixels(head, file)
        raised = "nothing"
    except RuntimeError as error:
        raised = "a shortage" if is_shortage(error) else str(error)
    pool.begin(blocks)
    with pool.borrowed():
        apart = _levels_apart(_pixels(head, file), own)
    nbytes = borrowed.live_bytes()
    began = time.perf_counter()
    pool.end()
    vacated = time.perf_counter()
    for block in blocks:
        block.return_()
    del hoard
    torch.cuda.empty_cache()
    built = time.perf_counter()
    again = _levels_apart(_pixels(head, file), own)
    return {
        "mean_levels_apart": max(apart, again),
        "raised": raised,
        "borrowed_mib": nbytes >> 20,
        "release_blocks_ms": round((vacated - began) * 1e3, 3),
        "build_and_run_again_ms": round((time.perf_counter() - built) * 1e3, 3),
    }


def _an_image() -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (_HEIGHT // 50, _WIDTH // 50, 3), np.uint8)
    Image.fromarray(noise).resize((_WIDTH, _HEIGHT)).save(file, "JPEG")
    return file.getvalue()


def _pixels(head: DaliHead, file: bytes) -> Any:
    decoded = decode(head, [file] * _IMAGES, [_WINDOW] * _IMAGES)
    reasons = [each.reason for each in decoded if each.image is None]
    assert not reasons, reasons
    return np.stack([np.asarray(each.image.as_cpu()) for each in decoded])


def _levels_apart(pixels: Any, others: Any) -> float:
    """The mean difference: which of a device's decoders works depends on the memory there is."""
    return float(np.abs(pixels.astype(np.int16) - others).mean())


def _all_but(left: int, device: int) -> list[Any]:
    """Takes the device's free memory; torch has it when the result is gone."""
    hoard = []
    for part in (1 << 30, 64 << 20, 2 << 20):
        while torch.cuda.mem_get_info(device)[0] > left + part:
            hoard.append(torch.empty(part, dtype=torch.uint8, device=f"cuda:{device}"))
    return hoard

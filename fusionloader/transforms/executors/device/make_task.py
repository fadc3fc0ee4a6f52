"""Builds the GPU worker's task for a plan."""

from __future__ import annotations

import io
from dataclasses import dataclass

from fusionloader.transforms.executors.dali.memory.borrowing import may_borrow
from fusionloader.transforms.executors.decoders.by_name import make_decoder
from fusionloader.transforms.executors.decoders.decoder_head import DecoderHead
from fusionloader.transforms.executors.device.fused_augment import FusedAugment
from fusionloader.transforms.executors.device.launchers import CudaLauncher, HostLauncher
from fusionloader.transforms.executors.device.memory import allocator_of_torch
from fusionloader.transforms.executors.device.task import GpuTask
from fusionloader.transforms.executors.device_errors import is_shortage
from fusionloader.transforms.plan.stages import Plan

_WARM_UP_SIDE = 64


@dataclass(frozen=True, slots=True)
class HeadOptions:
    """The decoder and its options.

    Attributes:
        decoder: name of the decoder, or an object of the user, pickled.
        name: name for messages.
        threads: as in ``GpuWorker``.
        hw_decoder_load: as in ``GpuWorker``.
        groups: maximum number of groups that are decoded at a time.
        timeout: maximum seconds between two results while images are being decoded.
        keeps_memory: whether buffers are recycled from group to group.
    """

    decoder: str | bytes = "dali"
    name: str = "DALI"
    threads: int = 1
    hw_decoder_load: float = 1.0
    groups: int = 1
    timeout: float = 30.0
    keeps_memory: bool = True


def make_task(plan: Plan, device_id: int | None, most_samples: int, head: HeadOptions) -> GpuTask:
    """Returns a task that has run once, so that nothing is built at the first group.

    If memory ran out, the task has not run. Memory can be borrowed at the first group.

    Args:
        plan: plan of a dataset of files.
        device_id: index of a CUDA device, ``None`` for the CPU.
        most_samples: maximum number of samples in a launch.
        head: decoder and its options.

    Raises:
        ImportError: the library that decodes is missing.
        DecoderFailed: the decoder cannot be started, or does not decode a plain image.
        NvrtcError: the fused kernel cannot be compiled.
        RuntimeError: DALI cannot build a pipeline on the device, or the driver refuses the kernel.
    """
    decoder = make_decoder(head.decoder, head.threads, head.hw_decoder_load)
    capacity = most_samples * head.groups
    driven = DecoderHead(decoder, device_id, capacity, head.timeout, head.name, head.keeps_memory)
    augment = _augment(plan, device_id)
    own = isinstance(head.decoder, bytes)
    task = GpuTask(plan, driven, augment, most_samples, head_resizes=own)
    try:
        task.warm_up(_an_image(), head.groups)
    except RuntimeError as error:
        if not (is_shortage(error) and may_borrow(device_id)):
            raise  # otherwise the first launch borrows, and builds what is missing
    return task


def _augment(plan: Plan, device_id: int | None) -> FusedAugment:
    if device_id is None:
        return FusedAugment(plan, HostLauncher())
    import torch

    # Streams of torch live as long as the process.
    stream = torch.cuda.Stream(device_id)  # type: ignore[no-untyped-call]
    allocate = allocator_of_torch(stream)
    return FusedAugment(plan, CudaLauncher(device_id, stream.cuda_stream, allocate))


def _an_image() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (_WARM_UP_SIDE, _WARM_UP_SIDE), (90, 120, 150)).save(file, "JPEG")
    return file.getvalue()

"""The GPU worker's task, with rows as a device has them."""

import io

import dali_or_skip  # noqa: F401
import numpy as np
import torch
from support.images import photo, train_transform

from fusionloader.executors.decoders.dali_decoder import DaliDecoder
from fusionloader.executors.decoders.decoder_head import DecoderHead
from fusionloader.executors.device.task import (
    EncodedSample,
    GpuTask,
    NativeAugment,
    rows_of_device,
)
from fusionloader.plan.transforms import compile_transform


class DeviceRow:
    """A row of a batch on a device: it has an address, and nothing that the host could read."""

    def __init__(self, memory):
        self._memory = memory

    def data_ptr(self):
        return self._memory.data_ptr()


class AugmentOnDevice(NativeAugment):
    """Writes to addresses, as the fused kernel does."""

    def rows(self, count, row_bytes):
        return list(map(DeviceRow, rows_of_device(count, row_bytes, "cpu")))

    def run(self, images, operations, rows):
        addresses = [row.data_ptr() for row in rows]
        assert len(set(addresses)) == len(rows)
        return super().run(images, operations, [row._memory.numpy() for row in rows])


def encoded():
    file = io.BytesIO()
    photo(np.random.default_rng(4), 90, 70).save(file, "JPEG")
    return file.getvalue()


def test_a_task_is_warmed_up_with_the_rows_of_its_augment():
    plan = compile_transform(train_transform(24)).plan
    augment = AugmentOnDevice(plan)
    task = GpuTask(plan, DecoderHead(DaliDecoder(), None, 4, 60), augment, 4)
    task.warm_up(encoded())
    memory = rows_of_device(3, 3 * 24 * 24 * 4, "cpu")
    content = encoded()
    samples = [
        EncodedSample(content, 1, 0, n, 0, 0, DeviceRow(row), n) for n, row in enumerate(memory)
    ]
    assert task.run(samples) == [None] * 3
    for row in memory:
        values = row.view(torch.float32)
        assert bool(values.isfinite().all()) and float(values.std()) > 0.1

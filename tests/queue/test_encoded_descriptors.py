"""Encoded images in a mini-batch's slot: where they lie, and what a worker takes for one."""

import os
import struct

import numpy as np
import pytest
import torch
from support.control_blocks import ControlBlock
from support.encoded_images import encoded, expected
from support.images import eval_transform, photo

from fusionloader import _native
from fusionloader._native import WorkerEvent
from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.transforms import compile_transform

ROW = 3 * 32 * 32 * 4


class Bench(ControlBlock):
    """A queue with a descriptor of a few images, rows for ten results, and a worker's loop."""

    def __init__(self, sizes):
        super().__init__(1, 4)
        nbytes = self.manager.encoded_bytes(len(sizes), 1, sum(sizes))
        (self.descriptor,) = self.arena.cut(nbytes, self.manager)
        (self.payload,) = self.arena.cut(10 * ROW, self.manager)
        self.table = DatasetTable.of_files([], [])
        plan = compile_transform(eval_transform()).plan
        memory = _native.SharedMapping(self.table.fd, 0, self.table.nbytes)
        executor = make_executor(plan)
        self.loop = _native.PlanWorker(self.workers[0], memory, executor, os.getppid())

    def describe(self, images, first_row=0, payload_rows=10):
        self.manager.write_encoded(self.descriptor.number, images, 1)
        self.manager.describe_encoded(
            self.descriptor.number,
            sequence=0,
            rows=range(len(images)),
            keys=range(len(images)),
            tiny_size=1,
            seed=0,
            epoch=0,
            payload=self.payload.number,
            first_row=first_row,
            payload_rows=payload_rows,
        )
        self.manager.publish(self.descriptor.number, 0, len(images))

    def row(self, number):
        rows = torch.frombuffer(self.payload.map, dtype=torch.float32, count=10 * ROW // 4)
        return rows.view(10, 3, 32, 32)[number]


@pytest.fixture
def images():
    generator = np.random.default_rng(1)
    return [encoded(photo(generator, 80, 60)) for _ in range(3)]


@pytest.fixture
def bench(make_control_block, images):
    return make_control_block([len(image) for image in images], kind=Bench)


def test_images_become_rows_from_the_first_one_on(bench, images):
    bench.describe(images, first_row=5)
    for _ in images:
        assert bench.loop.run(True) is WorkerEvent.SERVED
    assert bench.manager.status(bench.descriptor.number).completed == 3
    for number, image in enumerate(images):
        assert torch.equal(bench.row(5 + number), expected(eval_transform(), image))
    assert not bench.row(4).any() and not bench.row(8).any()


def test_images_that_do_not_fit_their_slot_are_refused(bench, images):
    with pytest.raises(ValueError, match="too small for its images"):
        bench.manager.write_encoded(bench.descriptor.number, [bytes(bench.descriptor.nbytes)], 1)


@pytest.mark.parametrize(("first", "rows"), [(8, 10), (0, 2)])
def test_rows_outside_the_payload_are_refused(bench, images, first, rows):
    with pytest.raises(IndexError, match="rows of a payload"):
        bench.describe(images, first, rows)


@pytest.mark.parametrize(
    ("offset", "nbytes"), [(0, 1 << 40), (1 << 62, 8), ((1 << 64) - 8, 16), (8, (1 << 64) - 4)]
)
def test_a_place_outside_the_slot_is_no_image(bench, images, offset, nbytes):
    bench.describe(images)
    table = bench.manager.encoded_bytes(3, 1, 0) - 3 * 16
    struct.pack_into("<QQ", bench.descriptor.map, table, offset, nbytes)
    events = [bench.loop.run(True) for _ in range(2)]
    assert events == [WorkerEvent.SERVED] * 2  # the other two: the largest number comes first
    assert bench.loop.run(True) is WorkerEvent.SAMPLE
    assert bench.loop.comes_encoded and bench.loop.encoded() == b""

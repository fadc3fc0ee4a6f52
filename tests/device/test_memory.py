"""Memory by its address."""

import ctypes

import numpy as np
import pytest
import torch

from fusionloader.transforms.executors.device.memory import (
    Memory,
    allocate_on_host,
    of_buffer,
    of_tensor,
)
from fusionloader.transforms.executors.device.task import rows_in


@pytest.mark.parametrize("nbytes", [0, 1, 16, 100, 1 << 20])
def test_memory_of_the_host_is_aligned_and_whole(nbytes):
    memory = allocate_on_host(nbytes)
    assert memory.address % 16 == 0 and memory.nbytes == nbytes
    ctypes.memset(memory.address, 7, nbytes)
    assert ctypes.string_at(memory.address, nbytes) == b"\7" * nbytes


def test_it_is_that_of_a_buffer_or_a_tensor():
    array = np.arange(8, dtype=np.uint8)
    assert ctypes.string_at(of_buffer(memoryview(array)[2:]).address, 3) == b"\2\3\4"
    assert of_buffer(array) == Memory(array.ctypes.data, 8)
    tensor = torch.arange(6, dtype=torch.int32)
    assert of_tensor(tensor) == Memory(tensor.data_ptr(), 24)


def test_its_owner_lives_as_long_as_any_part():
    array = np.arange(8, dtype=np.uint8)
    part = of_buffer(array).part(6, 2)
    del array
    assert ctypes.string_at(part.address, part.nbytes) == b"\6\7"
    assert part.owner is not None


@pytest.mark.parametrize(("begin", "nbytes"), [(-1, 2), (0, 9), (8, 1), (3, -1)])
def test_a_part_is_within_it(begin, nbytes):
    with pytest.raises(ValueError, match="of 8"):
        Memory(4096, 8).part(begin, nbytes)


def test_rows_follow_each_other():
    assert rows_in(Memory(100, 12), 3) == [Memory(100, 4), Memory(104, 4), Memory(108, 4)]

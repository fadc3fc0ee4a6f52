"""Which errors mean that memory has run out."""

import pytest
import torch

from fusionloader.executors.device.program import KernelError
from fusionloader.executors.shortage import is_shortage


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        KernelError("CUDA: out of memory (error 2)"),
        RuntimeError("Critical error in pipeline: CUDA runtime error cudaErrorMemoryAllocation"),
        RuntimeError("encountered: Can't allocate 1048576 bytes on device 0."),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_what_says_that_memory_ran_out_is_a_shortage(error):
    assert is_shortage(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA runtime API error cudaErrorIllegalAddress (700)"),
        ValueError("out of memory is what the file is called"),
        KernelError("CUDA: invalid argument (error 1)"),
    ],
)
def test_other_errors_are_none(error):
    assert not is_shortage(error)

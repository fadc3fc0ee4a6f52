"""Which errors mean that memory has run out."""

import pytest
import torch

from fusionloader.executors.device.launchers import KernelError
from fusionloader.executors.shortage import is_shortage
from fusionloader.gpu_memory.errors import CudaError


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        CudaError("cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (2): no text", 2),
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
        CudaError("cuLaunchKernel failed: CUDA_ERROR_INVALID_VALUE (1): invalid argument", 1),
        KernelError("the driver does not take the fused kernel"),
    ],
)
def test_other_errors_are_none(error):
    assert not is_shortage(error)

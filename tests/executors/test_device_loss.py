"""Which errors mean that a process can use its device no more."""

import pytest

from fusionloader.executors.device.launchers import KernelError
from fusionloader.executors.device_loss import is_device_lost
from fusionloader.executors.shortage import is_shortage


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA runtime API error cudaErrorIllegalAddress (700)"),
        RuntimeError("CUDA driver API error CUDA_ERROR_LAUNCH_FAILED (719)"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: uncorrectable ECC error encountered"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("No CUDA-capable device is detected: cudaErrorNoDevice (100)"),
        KernelError("CUDA: unspecified launch failure (error 719)"),
    ],
)
def test_errors_that_stay_mean_a_lost_device(error):
    assert is_device_lost(error)
    assert not is_shortage(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("CUDA runtime API error cudaErrorMemoryAllocation (2)"),
        RuntimeError("nvjpeg error (3): The JPEG cannot be decoded: illegal instruction"),
        KernelError("CUDA: invalid argument (error 1)"),
        ValueError("CUDA error: an illegal memory access was encountered"),
    ],
)
def test_other_errors_do_not(error):
    assert not is_device_lost(error)

"""Which of CUDA's errors mean that a process can use its device no more, or that memory ran out."""

from pathlib import Path

import pytest
import torch
from support.cuda_errors import cuda_codes

from fusionloader.system.gpu_memory.errors import CudaError
from fusionloader.transforms.executors.device.launchers import KernelError
from fusionloader.transforms.executors.device_errors import is_device_lost, is_shortage

# The header does not say of these that the process has to end; no call succeeds after them either.
NO_DEVICE = {
    "cudaErrorDevicesUnavailable",
    "cudaErrorPriorLaunchFailure",
    "cudaErrorNoDevice",
    "cudaErrorECCUncorrectable",
    "cudaErrorUnknown",
}
codes = pytest.mark.parametrize("code", cuda_codes() or [None], ids=lambda code: code and code.name)


@codes
def test_errors_that_stay_and_no_others_mean_a_lost_device(code):
    if code is None:
        pytest.skip("CUDA's runtime and its header are not installed")
    lost = code.stays or code.name in NO_DEVICE
    said = code.said[:1] if code.name == "cudaErrorUnknown" else code.said  # "unknown error"
    assert [is_device_lost(RuntimeError(text)) for text in said] == [lost] * len(said)
    short = code.name == "cudaErrorMemoryAllocation"
    assert [is_shortage(RuntimeError(text)) for text in code.said] == [short] * 2


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (CudaError("cuLaunchKernel failed: CUDA_ERROR_LAUNCH_FAILED (719): no text", 719), True),
        (CudaError("cuMemAlloc failed: CUDA_ERROR_ILLEGAL_ADDRESS (700): no text", 700), True),
        (KernelError("CUDA: unspecified launch failure (error 719)"), True),
        (RuntimeError("nvjpeg error (3): cannot be decoded: illegal instruction"), False),
        (ValueError("CUDA error: an illegal memory access was encountered"), False),
    ],
)
def test_it_takes_cuda_s_words_in_an_error_of_ours_and_of_nobody_else(error, lost):
    assert is_device_lost(error) is lost
    assert not is_shortage(error)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        CudaError("cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (2): no text", 2),
        RuntimeError("encountered: Can't allocate 1048576 bytes on device 0."),
        RuntimeError("std::bad_alloc"),
    ],
)
def test_what_says_that_memory_ran_out_is_a_shortage(error):
    assert is_shortage(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("out of memory is what the file is called"),
        CudaError("cuLaunchKernel failed: CUDA_ERROR_INVALID_VALUE (1): invalid argument", 1),
        KernelError("the driver does not take the fused kernel"),
    ],
)
def test_other_errors_are_none(error):
    assert not is_shortage(error)


@pytest.mark.parametrize(
    ("package", "library", "words"),
    [
        ("torch", "lib/libc10_cuda.so", b"CUDA out of memory. Tried to allocate "),
        ("nvidia.dali", "libdali_core.so", b"Can't allocate %zu bytes on device %d."),
    ],
)
def test_the_libraries_say_it_in_these_words(package, library, words):
    module = pytest.importorskip(package)
    file = Path(module.__file__).parent / library
    if not file.exists():
        pytest.skip(f"a {package} without CUDA")
    assert words in file.read_bytes()

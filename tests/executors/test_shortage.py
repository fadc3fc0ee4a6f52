"""Which errors mean that memory has run out."""

from pathlib import Path

import pytest
import torch

from fusionloader.executors.device.launchers import KernelError
from fusionloader.executors.device_errors import is_shortage
from fusionloader.gpu_memory.errors import CudaError


# CUDA's own words are in test_device_loss.py.
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

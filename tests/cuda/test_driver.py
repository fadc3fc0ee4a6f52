"""The driver layer: what it says where there is no driver or no device, and after a fork."""

import ctypes
import os
import re
import subprocess
from pathlib import Path

import pytest
from support.fake_cuda import CSRC, CUDA_TESTS, run_program

from fusionloader._native import cuda
from fusionloader.system.gpu_memory.errors import CudaError
from fusionloader.transforms.executors.device_errors import is_device_lost
from fusionloader.transforms.executors.nvidia_packages import folders

CUDA_HEADERS = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "include")
CUDA_H = CUDA_HEADERS / "cuda.h"


LENDER = "from fusionloader.system.gpu_memory import Lender\nLender()\n"


def test_a_machine_without_a_driver_is_told_so():
    said = run_program(LENDER, FUSIONLOADER_LIBCUDA="/nowhere/libcuda.so.1").stderr
    assert "UnavailableError: no CUDA driver on this machine: /nowhere/libcuda.so.1" in said


def test_too_old_a_driver_is_told_so():
    said = run_program(LENDER, FUSIONLOADER_LIBCUDA="libc.so.6").stderr
    assert "UnavailableError: libc.so.6 does not have cuInit: the CUDA driver is too old" in said


def test_errors_have_the_name_and_the_text_of_cuda(fake_library):
    said = run_program(LENDER, FAKE_CUDA_NO_DEVICE="1").stderr
    assert "cuInit failed: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected" in said


def error_texts(library, function):
    calls, found = ctypes.CDLL(str(library)), {}
    for code in range(1000):
        text = ctypes.c_char_p()
        if getattr(calls, function)(code, ctypes.byref(text)) == 0:
            found[code] = text.value.decode()
    return found


def test_texts_of_the_fake_driver_are_those_of_libcudart(fake_library):
    libraries = [path for each in folders() for path in each.glob("*/lib/libcudart.so.*")]
    if not libraries:
        pytest.skip("no libcudart")
    runtime = ctypes.CDLL(str(libraries[0]))
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    texts = error_texts(fake_library, "cuGetErrorString")
    assert len(texts) > 10
    assert texts == {code: runtime.cudaGetErrorString(code).decode() for code in texts}


def test_what_is_written_is_read(fake_cuda):
    address = fake_cuda.allocate(8192)
    cuda.fill(0, address, 0x1234, 2048)
    assert set(memoryview(cuda.read(0, address, 8192)).cast("I")) == {0x1234}


def test_errors_carry_the_number_of_cuda(fake_cuda):
    with pytest.raises(CudaError, match="CUDA_ERROR_OUT_OF_MEMORY") as raised:
        cuda.allocate(0, 1 << 40)
    assert raised.value.code == 2


def test_a_device_that_is_not_there_is_an_error(fake_cuda):
    with pytest.raises(CudaError, match="cuDeviceGet failed: CUDA_ERROR_INVALID_DEVICE"):
        cuda.allocate(7, 4096)


@pytest.mark.parametrize("call", ["Lender()", "native.allocate(0, 4096)", "native.uuid(0)"])
def test_cuda_after_fork_is_refused(fake_library, call):
    program = f"""
import os
from fusionloader.system.gpu_memory import Lender
from fusionloader._native import cuda as native
Lender()
if os.fork() == 0:
    try:
        {call}
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
os.wait()
"""
    said = run_program(program).stdout
    assert "UnavailableError CUDA was initialised in process" in said
    assert "use the 'spawn' start method" in said


def test_the_thread_keeps_its_own_context(fake_cuda):
    program = """
import ctypes, os
from fusionloader._native import cuda
calls = ctypes.CDLL(os.environ["FUSIONLOADER_LIBCUDA"])
def current():
    found = ctypes.c_void_p()
    calls.cuCtxGetCurrent(ctypes.byref(found))
    return found.value
cuda.allocate(0, 4096)
assert current() is None
mine = ctypes.c_void_p()
calls.cuDevicePrimaryCtxRetain(ctypes.byref(mine), 1)
calls.cuCtxSetCurrent(mine)
cuda.allocate(0, 4096)
assert current() == mine.value
"""
    done = run_program(program, FAKE_CUDA_DEVICES="ab")
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not CUDA_H.exists(), reason="no CUDA toolkit (cuda.h)")
class TestDeclarations:
    def check(self, source, csrc=CSRC):
        command = ["g++", "-std=c++17", "-fsyntax-only", f"-I{csrc}", f"-I{CUDA_HEADERS}"]
        return subprocess.run([*command, str(source)], capture_output=True, text=True)

    def test_they_are_those_of_cuda(self):
        done = self.check(CUDA_TESTS / "abi_check.cpp")
        assert done.returncode == 0, done.stderr

    def test_errors_of_the_fake_driver_have_cuda_s_names(self, fake_library):
        named = re.findall(r"^ +(CUDA_\w+) += (\d+),", CUDA_H.read_text(), re.MULTILINE)
        names = error_texts(fake_library, "cuGetErrorName")
        assert len(names) > 10
        assert {(name, str(code)) for code, name in names.items()} <= set(named)

    def test_errors_that_end_all_work_are_known_as_such(self):
        text = re.sub(r"\s*\n\s+\* ", " ", CUDA_H.read_text())
        ends = r"must be terminated and relaunched\.\s+\*/\s+(CUDA_ERROR_\w+)\s+= (\d+)"
        names = re.findall(ends, text)
        assert len(names) > 5
        errors = [CudaError(f"cuEventQuery failed: {name}", int(code)) for name, code in names]
        assert [error for error in errors if not is_device_lost(error)] == []

    @pytest.mark.parametrize(
        ("right", "wrong"),
        [
            ("(DevicePointer*, size_t))", "(DevicePointer*, int))"),
            ('"cuMemFree_v2"', '"cuMemFree"'),
            ("(Stream, int*))", "(Stream))"),
            ("kBufferId = 7", "kBufferId = 8"),
        ],
    )
    def test_a_wrong_one_is_found(self, tmp_path, right, wrong):
        text = (CSRC / "cuda" / "driver_table.hpp").read_text()
        assert text.count(right) == 1
        (tmp_path / "cuda").mkdir()
        (tmp_path / "cuda" / "driver_table.hpp").write_text(text.replace(right, wrong))
        assert (
            "static assertion failed" in self.check(CUDA_TESTS / "abi_check.cpp", tmp_path).stderr
        )

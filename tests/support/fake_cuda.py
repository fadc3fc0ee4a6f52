"""The fake driver: built once a session, used by this process and by those it starts."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from fusionloader._native import cuda
from support.waiting import PATIENCE

CUDA_TESTS = Path(__file__).parents[1] / "cuda"
CSRC = CUDA_TESTS.parents[1] / "csrc"
NAME = "libfakecuda.so"
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]


def compile_library(sources: list[Path], library: Path, *flags: str) -> Path:
    command = ["g++", "-std=c++17", "-O1", "-g", "-fPIC", "-shared", "-fvisibility=hidden"]
    command += [f"-I{CSRC}", *flags, *map(str, sources), "-o", str(library), "-pthread", "-ldl"]
    compile_with(command)
    return library


def compile_with(command: list[str]) -> None:
    """Runs the compiler, without the sanitizer's library that this process may have to load."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr


def run_program(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs Python code in a process of its own, which loads the driver anew."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@dataclass(frozen=True)
class PoolBlock:
    """What ``memory.pool`` asks of a mapping, of memory that is this process's own."""

    address: int
    nbytes: int
    device: int = 0


class FakeCuda:
    """What a program would do with its device besides lending: allocate, launch, wait."""

    kernel: object = None

    def __init__(self, library: Path) -> None:
        self.library = library
        self._calls = ctypes.CDLL(str(library))
        for name in ("Break", "Hold", "Kernel", "Late", "OthersCall", "Refuse", "Run"):
            getattr(self._calls, f"fake{name}").restype = None
        self.allocated: set[int] = set()
        self.held: set[int] = set()

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._calls, name)(*arguments)
        assert result in (0, None), f"{name} returned {result}"

    def enter(self, device: int = 0) -> None:
        """Makes a device the current one of this thread."""
        context = ctypes.c_void_p()
        self._call("cuInit", 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self._call("cuCtxSetCurrent", context)

    def allocate(self, nbytes: int, device: int = 0) -> int:
        address = cuda.allocate(device, nbytes)
        self.allocated.add(address)
        return address

    def allocate_expandable(self, nbytes: int) -> int:
        self.enter()
        address = ctypes.c_uint64()
        self._call("fakeAllocateExpandable", ctypes.byref(address), ctypes.c_size_t(nbytes))
        self.allocated.add(address.value)
        return address.value

    def free(self, address: int, device: int = 0) -> None:
        self.allocated.discard(address)
        cuda.free(device, address)

    def stream(self, device: int = 0) -> int:
        self.enter(device)
        stream = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(stream), 0)
        assert stream.value is not None
        return stream.value

    def capture(self, stream: int, on: bool) -> None:
        """Begins or ends a capture, in CUDA's global mode; at its end it must be whole."""
        self._call("fakeCapture", ctypes.c_void_p(stream), int(on))

    def hold(self, stream: int, on: bool) -> None:
        """A stream that is held does nothing until it is let go."""
        if on:
            gc.collect()  # to free memory, which earlier tests may have left, waits for the device
        (self.held.add if on else self.held.discard)(stream)
        self._call("fakeHold", ctypes.c_void_p(stream), int(on))

    def refuse(self, call: str, before: int = 0) -> None:
        """Refuses what the package calls, when it has called it so many times; "" refuses none."""
        self._call("fakeRefuse", call.encode(), before)

    @property
    def calls(self) -> dict[str, int]:
        """What the package has called since ``refuse``, and how often."""
        self._calls.fakeCalls.restype = ctypes.c_char_p
        words = self._calls.fakeCalls().decode().split()
        return dict(zip(words[::2], map(int, words[1::2]), strict=True))

    @contextmanager
    def by_torch(self) -> Iterator[None]:
        """Within it calls of this thread are torch's, which are neither counted nor refused."""
        self._call("fakeOthersCall", 1)
        yield
        self._call("fakeOthersCall", 0)

    def break_device(self) -> None:
        self._call("fakeBreak")

    def fill(self, address: int, value: int, nbytes: int, stream: int = 0) -> None:
        """Launches work that takes ``FAKE_CUDA_WORK_US``; does not wait for it."""
        self.enter()
        self._call(
            "cuMemsetD32Async",
            ctypes.c_uint64(address),
            ctypes.c_uint(value),
            ctypes.c_size_t(nbytes // 4),
            ctypes.c_void_p(stream),
        )

    def set_kernel(self, kernel: Callable[[int, int, int, int], None]) -> None:
        """What a launch calls: with its program, working memory, blocks and threads of each."""
        kind = ctypes.CFUNCTYPE(
            None, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint, ctypes.c_uint
        )
        FakeCuda.kernel = kind(kernel)  # for as long as the library may call it
        self._call("fakeKernel", FakeCuda.kernel)

    def has_context(self, device: int) -> bool:
        """Whether this process has made a context on a device."""
        flags, active = ctypes.c_uint(), ctypes.c_int()
        self._call("cuDevicePrimaryCtxGetState", device, ctypes.byref(flags), ctypes.byref(active))
        return bool(active.value)

    def wait(self, stream: int) -> None:
        self.enter()
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def be_late(self, on: bool = True, last_made_first: bool = True) -> None:
        """A late device does nothing but what somebody waits for, and what that depends on."""
        self._call("fakeLate", 0 if not on else 1 if last_made_first else 2)

    def run(self) -> None:
        """A late device does all that it was given."""
        self._call("fakeRun")

    @property
    def in_use(self) -> int:
        """Bytes that are allocated; tests before this one may have left some to the collector."""
        self._calls.fakeInUse.restype = ctypes.c_size_t
        return int(self._calls.fakeInUse())

    @property
    def idle(self) -> bool:
        return bool(self._calls.fakeIdle())

    def read_later(self, to: int, address: int, nbytes: int, stream: int) -> None:
        """Enqueues a copy to the host."""
        self.enter()
        self._call(
            "cuMemcpyDtoHAsync_v2",
            ctypes.c_void_p(to),
            ctypes.c_uint64(address),
            ctypes.c_size_t(nbytes),
            ctypes.c_void_p(stream),
        )

    def write_later(
        self, address: int, source: int, nbytes: int, stream: int, device: int = 0
    ) -> None:
        """Enqueues a copy from page-locked memory, as ``to(device, non_blocking=True)``."""
        self.enter(device)
        self._call(
            "cuMemcpyHtoDAsync_v2",
            ctypes.c_uint64(address),
            ctypes.c_void_p(source),
            ctypes.c_size_t(nbytes),
            ctypes.c_void_p(stream),
        )

    def words(self, address: int, nbytes: int) -> set[int]:
        """The different 32-bit words that the memory holds now, whatever is under way."""
        data = ctypes.string_at(address, nbytes)
        return set(memoryview(data).cast("I"))


def build_fake_driver(folder: Path) -> Path:
    flags = [*WARNINGS, "-ffp-contract=off"]  # the arithmetic of kernels is the host's
    return compile_library([CUDA_TESTS / "fake_driver.cpp"], folder / NAME, *flags)


def _build_once(folder: Path) -> Path:
    """Builds the driver, which the processes of one pytest-xdist run share."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    folder = folder / "cuda"
    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (library := folder / NAME).exists():
            os.rename(build_fake_driver(Path(tempfile.mkdtemp(dir=folder))), library)
    return library


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory):
    """The fake driver is the one that this process and its children load from here on."""
    given = os.environ.get("FUSIONLOADER_LIBCUDA", "")
    if Path(given).name == NAME:  # by tests that run tests
        return Path(given)
    library = _build_once(tmp_path_factory.getbasetemp())
    os.environ["FUSIONLOADER_LIBCUDA"] = str(library)
    if cuda.library() != str(library):
        pytest.skip("this process has loaded another CUDA driver already")
    return library


@pytest.fixture
def fake_cuda(fake_library):
    fake = FakeCuda(fake_library)
    yield fake
    fake.refuse("")
    for stream in list(fake.held):
        fake.hold(stream, False)
    for address in list(fake.allocated):
        fake.free(address)

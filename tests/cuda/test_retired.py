"""What is freed in the order of a stream: free when the device has done what was before it."""

import ctypes
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from support.fake_cuda import PoolBlock
from support.waiting import PATIENCE

from fusionloader.system.gpu_memory import pool

SIZE = 1 << 20
# For how long something that must not happen is waited for. On a busy machine this may let a
# mistake pass, and never fails what is right.
MOMENT = 0.2


@pytest.fixture
def block(fake_cuda):
    block = PoolBlock(fake_cuda.allocate(SIZE), SIZE)
    pool.add(block)
    yield block
    pool.settle()
    pool.remove(block)


@pytest.fixture
def entry_points():
    """The functions that a library for DALI is given: allocate, and free in stream order."""
    library = ctypes.CDLL(pool.LIBRARY)
    allocate = getattr(library, pool.MALLOC)
    allocate.restype = ctypes.c_void_p
    allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    retire = getattr(library, pool.RETIRE)
    retire.restype = ctypes.c_bool
    retire.argtypes = [ctypes.c_void_p]
    return (lambda nbytes: allocate(nbytes, 0, None)), retire


@pytest.fixture
def work(fake_cuda, block):
    """Work of a stream on the block, which is not done before the stream is let go."""
    stream = fake_cuda.stream()
    fake_cuda.hold(stream, True)
    fake_cuda.fill(block.address, 7, SIZE, stream)
    return lambda: fake_cuda.hold(stream, False)


def retires_at_once(retire, address):
    """Whether it retires while the device is at work; a thread that waits is waited for later."""
    retired = []
    thread = threading.Thread(target=lambda: retired.append(retire(address)), daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return retired == [True]


@pytest.mark.parametrize("by", ["settling", "an allocation that finds no room"])
def test_its_room_is_given_again_after_the_work_in_it(block, work, entry_points, fake_cuda, by):
    allocate, retire = entry_points
    address = allocate(SIZE)
    assert retire(address)
    seen = []

    def want_it():
        if by == "settling":
            pool.settle()
        else:
            seen.append(allocate(SIZE))
        seen.append(fake_cuda.words(block.address, SIZE))

    waiting = threading.Thread(target=want_it)
    waiting.start()
    waiting.join(MOMENT)
    assert waiting.is_alive()
    assert seen == []
    work()
    waiting.join()
    assert seen[-1] == {7}
    if by != "settling":
        assert seen[0] == address
        retire(address)


def test_what_a_second_thread_retires_meanwhile_does_not_wait_and_is_not_lost(
    block, work, entry_points
):
    allocate, retire = entry_points
    first, second = allocate(SIZE // 2), allocate(SIZE // 2)
    assert retire(first)
    settling = threading.Thread(target=pool.settle)
    settling.start()
    settling.join(MOMENT)
    at_once = retires_at_once(retire, second)
    work()
    settling.join()
    assert at_once
    pool.settle()
    assert pool.live_bytes() == 0


def test_memory_that_is_not_of_the_pool_is_not_retired(block, entry_points):
    _, retire = entry_points
    assert not retire(block.address)
    assert not retire(None)


LOST_DEVICE = """
import ctypes
import os
from support.fake_cuda import FakeCuda, PoolBlock
from fusionloader._native import cuda
from fusionloader.system.gpu_memory import CudaError, GrantError
from test_retired import SIZE, pool

fake = FakeCuda(os.environ["FUSIONLOADER_LIBCUDA"])
block = PoolBlock(fake.allocate(SIZE), SIZE)
pool.add(block)
address = cuda.pool().allocate(SIZE, 0)
extension = ctypes.CDLL(pool.LIBRARY)
retire = getattr(extension, pool.RETIRE)
retire.argtypes = [ctypes.c_void_p]
retire(address)
fake.break_device()
for attempt in range(2):
    try:
        pool.settle()
    except CudaError as error:
        print(error.code)
print(getattr(extension, pool.MALLOC)(SIZE, 0, None))
try:
    pool.remove(block)
except GrantError as error:
    print(error)
"""


def test_of_a_lost_device_nothing_is_free(fake_library):
    here = Path(__file__).parent
    paths = [str(here), str(here.parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", LOST_DEVICE],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.stdout.splitlines() == [
        "700",
        "700",
        "0",
        f"{SIZE} bytes of the range are allocated still",
    ], done.stderr

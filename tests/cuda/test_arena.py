"""The arena in borrowed blocks, against a plain reference, and its entry points for PyTorch."""

import ctypes

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusionloader import _native
from fusionloader._native import cuda
from fusionloader.system.gpu_memory.errors import GrantError, SizeError

ALIGN = 512
RANGES = {1 << 40: 8192, (1 << 41) + 100: 6000}
TOO_MUCH = 2**64 - 1


def filled():
    arena = cuda.Arena()
    for address, nbytes in RANGES.items():
        arena.add(address, nbytes, 0)
    return arena


# What to allocate, or which of the live ones to free.
actions = st.lists(st.tuples(st.booleans(), st.integers(1, 3000)), max_size=60)


@settings(deadline=None, max_examples=200)
@given(actions)
def test_what_is_allocated_is_aligned_inside_and_apart(actions):
    arena = filled()
    live = {}
    for frees, number in actions:
        if frees and live:
            address = sorted(live)[number % len(live)]
            assert live.pop(address) <= ALIGN or not arena.free(address + ALIGN)
            assert arena.free(address)
            assert not arena.free(address)
            continue
        address = arena.allocate(number, 0)
        if address is None:
            continue
        assert address % ALIGN == 0
        assert any(r <= address and address + number <= r + n for r, n in RANGES.items())
        assert all(address + number <= a or a + n <= address for a, n in live.items())
        live[address] = number
    assert arena.live_bytes() == sum(-(-n // ALIGN) * ALIGN for n in live.values())
    for address in live:
        assert arena.free(address)
    assert arena.live_bytes() == 0
    assert arena.allocate(8192, 0) == 1 << 40, "free places were not joined"


def test_the_first_place_that_fits_is_taken():
    arena = filled()
    first, second = arena.allocate(1024, 0), arena.allocate(1024, 0)
    arena.free(first)
    assert arena.allocate(2048, 0) == second + 1024
    assert arena.allocate(1000, 0) == first


@pytest.mark.parametrize("nbytes", [0, 8193, TOO_MUCH, TOO_MUCH - ALIGN])
def test_what_does_not_fit_is_not_allocated(nbytes):
    assert filled().allocate(nbytes, 0) is None


def test_a_range_serves_its_own_device():
    arena = filled()
    assert arena.allocate(1, 1) is None
    arena.add(1 << 50, 4096, 1)
    assert arena.allocate(1, 1) == 1 << 50


def test_a_range_in_use_stays_and_a_frozen_one_gives_nothing_more():
    arena = filled()
    address = arena.allocate(100, 0)
    with pytest.raises(GrantError, match="512 bytes of the range are allocated still"):
        arena.remove(1 << 40)
    for begin in RANGES:
        arena.freeze(begin, True)
    assert arena.allocate(100, 0) is None
    assert arena.free(address)
    arena.freeze(1 << 40, False)
    assert arena.allocate(100, 0) == address
    assert arena.live_bytes(1 << 40) == 512
    arena.free(address)
    arena.remove(1 << 40)
    with pytest.raises(GrantError, match="no range of the pool"):
        arena.remove(1 << 40)


@pytest.mark.parametrize(
    ("address", "nbytes"), [(0, 0), (1, 511), (513, 600), (2**64 - 512, 4096), (TOO_MUCH, 1)]
)
def test_a_range_without_room_is_refused(address, nbytes):
    with pytest.raises(SizeError):
        cuda.Arena().add(address, nbytes, 0)


@pytest.mark.parametrize("address", [1 << 40, (1 << 40) + 4096, (1 << 40) - 4096])
def test_ranges_do_not_overlap(address):
    with pytest.raises(GrantError, match="in the pool already"):
        filled().add(address, 8192, 0)


def test_torch_finds_the_entry_points_in_the_extension(fake_library):
    library = ctypes.CDLL(_native.__file__)
    allocate, free = library.fl_pool_malloc, library.fl_pool_free
    allocate.restype = ctypes.c_void_p
    allocate.argtypes = [ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    free.restype = None
    free.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int, ctypes.c_void_p]
    cuda.pool().add(1 << 40, 8192, 0)
    try:
        assert allocate(-1, 0, None) is None
        address = allocate(8192, 0, None)
        assert address == 1 << 40
        assert allocate(1, 0, None) is None
        assert cuda.pool().live_bytes() == 8192
        free(address, 8192, 0, None)
        free(address, 8192, 0, None)
        assert cuda.pool().live_bytes() == 0
    finally:
        cuda.pool().remove(1 << 40)

"""DALI's allocations: its own memory first, then borrowed blocks, and where each is freed."""

import ctypes
import logging
import os
import subprocess
import sys

import dali_or_skip  # noqa: F401
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nvidia import dali
from support.fake_cuda import CUDA_TESTS, WARNINGS, PoolBlock
from support.waiting import PATIENCE

from fusionloader.system.gpu_memory import pool
from fusionloader.transforms.executors.dali.memory import borrowing, resource_library
from fusionloader.transforms.executors.dali.memory.resource_library import (
    CannotBuildError,
    build,
    library_path,
)
from fusionloader.transforms.executors.device.launch_memory import TorchPool

SOURCE = CUDA_TESTS.parent / "executors" / "check_memory_resource.cpp"
SIZE = 1 << 16
ALIGN = 256  # what DALI asks for
A_STREAM = 4321  # which is none: DALI means the host's order by it


def built(target, *flags, source=resource_library.SOURCE):
    try:
        return build(target, [*WARNINGS, *flags], source)
    except CannotBuildError as error:
        if "failed:" in str(error):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return built(tmp_path_factory.mktemp("dali") / "memory_resource.so")


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """The resource over a stand-in of DALI's own memory, whose calls begin with ``check_``."""
    target = tmp_path_factory.mktemp("dali") / "check.so"
    made = built(target, f"-I{resource_library.SOURCE.parent}", source=SOURCE)
    loaded = ctypes.CDLL(str(made))
    number, address, flag = ctypes.c_size_t, ctypes.c_void_p, ctypes.c_bool
    loaded.check_allocate.restype = loaded.check_last_stream.restype = address
    loaded.check_allocate.argtypes = [number, number, address, flag]
    loaded.check_free.restype = None
    loaded.check_free.argtypes = [address, number, number, address, flag]
    loaded.check_own_left.restype = loaded.check_mistakes.restype = number
    loaded.check_own_is_found.restype = flag
    return loaded


@pytest.fixture
def memory(calls, fake_cuda):
    """Begins with so much memory of DALI's own, and a borrowed block."""
    block = PoolBlock(fake_cuda.allocate(SIZE), SIZE)
    pool.add(block)
    extension = ctypes.CDLL(pool.LIBRARY)
    entries = [getattr(extension, name) for name in (pool.MALLOC, pool.RETIRE)]

    def begin(own_bytes):
        calls.check_begin(ctypes.c_size_t(own_bytes), *entries)
        return block

    yield begin
    assert calls.check_mistakes() == 0
    pool.settle()
    pool.remove(block)


in_any_order = pytest.mark.parametrize("in_order", [False, True])


@in_any_order
def test_its_own_memory_comes_first_and_gets_back_what_it_gave(calls, memory, in_order):
    memory(1000)
    address = calls.check_allocate(1000, ALIGN, A_STREAM, in_order)
    assert address is not None
    assert pool.live_bytes() == 0
    assert calls.check_own_left() == 0
    calls.check_free(address, 1000, ALIGN, A_STREAM, in_order)
    assert calls.check_own_left() == 1000
    assert calls.check_last_stream() == (A_STREAM if in_order else None)


@in_any_order
def test_what_does_not_fit_there_is_in_borrowed_memory_until_the_device_was_waited_for(
    calls, memory, in_order
):
    block = memory(1000)
    address = calls.check_allocate(5000, ALIGN, A_STREAM, in_order)
    assert block.address <= address <= block.address + SIZE - 5000
    assert pool.live_bytes() == 5120
    calls.check_free(address, 5000, ALIGN, A_STREAM, in_order)
    assert pool.live_bytes() == 5120
    pool.settle()
    assert pool.live_bytes() == 0
    assert calls.check_own_left() == 1000


@in_any_order
def test_what_fits_nowhere_is_dalis_bad_alloc(calls, memory, in_order):
    memory(1000)
    assert calls.check_allocate(SIZE + 1, ALIGN, A_STREAM, in_order) is None
    assert calls.check_allocate(1000, ALIGN, A_STREAM, in_order) is not None


def test_an_alignment_that_blocks_do_not_have_is_not_served(calls, memory):
    memory(0)
    assert calls.check_allocate(100, 1024, A_STREAM, True) is None
    address = calls.check_allocate(100, 512, A_STREAM, True)
    assert address % 512 == 0
    calls.check_free(address, 100, 512, A_STREAM, True)


def test_a_block_that_is_to_be_returned_gives_nothing(calls, memory):
    block = memory(0)
    pool.freeze(block)
    assert calls.check_allocate(100, ALIGN, A_STREAM, True) is None
    pool.freeze(block, False)
    address = calls.check_allocate(100, ALIGN, A_STREAM, True)
    calls.check_free(address, 100, ALIGN, A_STREAM, True)


def test_dali_finds_its_own_pool_behind_it(calls, memory):
    memory(0)
    assert calls.check_own_is_found()


# How much to allocate, or which of the live ones to free; in a stream's order or not.
actions = st.lists(st.tuples(st.integers(0, 20000), st.booleans(), st.booleans()), max_size=60)


def test_every_allocation_is_freed_where_it_came_from(calls, memory):
    @settings(deadline=None, max_examples=100)
    @given(actions)
    def run(actions):
        block = memory(30000)
        live = {}
        for number, frees, in_order in actions:
            if frees and live:
                address = sorted(live)[number % len(live)]
                calls.check_free(address, live.pop(address), ALIGN, A_STREAM, in_order)
            elif address := calls.check_allocate(number, ALIGN, A_STREAM, in_order):
                assert all(address + number <= a or a + n <= address for a, n in live.items())
                live[address] = number
        for address, nbytes in live.items():
            calls.check_free(address, nbytes, ALIGN, A_STREAM, True)
        pool.settle()
        assert pool.live_bytes(block) == 0
        assert calls.check_own_left() == 30000

    run()


# ---- the library -------------------------------------------------------------------------------


def test_without_a_driver_it_is_not_installed_and_one_line_says_why(
    library, tmp_path, monkeypatch, caplog
):
    why = borrowing.install_library(library, dali.__version__, 0)
    if why is None:
        pytest.skip("there is a driver")
    assert "cudaErrorInsufficientDriver" in why or "cudaErrorNoDevice" in why
    assert "\n" not in why
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = library_path(dali.__version__)
    path.parent.mkdir(parents=True)
    path.symlink_to(library)
    caplog.set_level(logging.INFO, "fusionloader.gpu")
    TorchPool(0)  # as a GPU worker does before it builds its pipelines
    assert caplog.messages == [f"DALI borrows no memory: {why}"]
    assert not borrowing.may_borrow(0)


def test_more_is_expected_until_it_was_asked_for_in_vain(monkeypatch):
    monkeypatch.setattr(borrowing, "_installed", {0})
    worker_pool = TorchPool(0)
    with worker_pool.own():
        assert borrowing.may_borrow(0)
    with pytest.raises(MemoryError), worker_pool.own(nothing_to_borrow=True):
        assert not borrowing.may_borrow(0)
        raise MemoryError
    assert borrowing.may_borrow(0)  # the next launch wishes again


def test_a_library_for_another_version_of_dali_is_refused(library):
    why = borrowing.install_library(library, "1.2.3", 0)
    assert why == (
        f"{library} is for DALI {dali.__version__}, not 1.2.3; build it again with: "
        "python -m fusionloader build-dali"
    )


def test_what_does_not_load_is_refused(tmp_path):
    library = tmp_path / "memory_resource.so"
    library.write_bytes(b"no library")
    why = borrowing.install_library(library, dali.__version__, 0)
    assert why.endswith("; build it again with: python -m fusionloader build-dali")
    assert str(library) in why


def test_what_was_not_built_is_not_installed(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    caplog.set_level(logging.INFO, "fusionloader.gpu")
    assert not borrowing.install(0)
    assert [record.levelno for record in caplog.records] == [logging.INFO]
    assert "python -m fusionloader build-dali was not run" in caplog.text


@pytest.fixture
def unusable_cache(tmp_path, monkeypatch):
    """A folder that cannot even be looked for, as in a home that is somebody else's."""
    cache = tmp_path / ("too long a name" * 20)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return cache


def test_where_no_cache_can_be_read_workers_start_and_nothing_is_installed(unusable_cache, caplog):
    caplog.set_level(logging.INFO, "fusionloader.gpu")
    TorchPool(0)
    assert "python -m fusionloader build-dali was not run" in caplog.text


def test_a_cache_that_cannot_be_written_is_named(unusable_cache):
    done = run_command(unusable_cache)
    assert done.returncode == 1
    assert done.stderr.startswith("not built: ")
    assert str(unusable_cache) in done.stderr
    assert done.stderr.endswith("; set XDG_CACHE_HOME to a folder that can be written\n")


def test_each_version_and_each_source_has_a_library_of_its_own(tmp_path, monkeypatch):
    paths = [library_path("2.4.0"), library_path("2.5.0")]
    changed = tmp_path / "changed.cpp"
    changed.write_text("// another one")
    monkeypatch.setattr(resource_library, "SOURCE", changed)
    paths.append(library_path("2.4.0"))
    assert len({path.name for path in paths}) == 3
    assert all("2.4.0" in path.name for path in paths[::2])


# ---- the command -------------------------------------------------------------------------------


def run_command(cache, **environment):
    """Its complaint is without the lines that show on a busy machine that it is at work."""
    done = subprocess.run(
        [sys.executable, "-m", "fusionloader", "build-dali"],
        env={**os.environ, "XDG_CACHE_HOME": str(cache), **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    lines = done.stderr.splitlines(keepends=True)
    done.stderr = "".join(line for line in lines if not line.endswith(" so far\n"))
    return done


def test_the_command_builds_what_workers_look_for(tmp_path, monkeypatch, library):
    done = run_command(tmp_path)
    assert done.returncode == 0, done.stderr
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = library_path(dali.__version__)
    assert f"built {path}" in done.stdout
    assert [path] == list(path.parent.iterdir())


def test_the_command_names_a_compiler_that_is_missing(tmp_path):
    done = run_command(tmp_path, CXX="no-such-compiler")
    assert done.returncode == 1
    assert done.stderr.startswith("not built: no C++ compiler (no-such-compiler); try: apt-get")
    assert list(tmp_path.rglob("*.so")) == []


def test_the_command_says_what_the_compiler_says(tmp_path):
    done = run_command(tmp_path, CXX="false")
    assert done.returncode == 1
    assert done.stderr.startswith("not built: false failed:")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_cudas_headers_that_are_missing_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(resource_library, "_CUDA_HEADERS", ("cuda_runtime.h", "no_such_header.h"))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    with pytest.raises(CannotBuildError) as raised:
        build(tmp_path / "memory_resource.so")
    text = str(raised.value)
    assert text.startswith("CUDA's headers (cuda_runtime.h, no_such_header.h) were not found in ")
    assert str(tmp_path / "include") in text
    assert text.endswith("install the CUDA toolkit, or set CUDA_HOME")


def test_dali_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(CannotBuildError, match="DALI does not load .*; try: pip install"):
        build(tmp_path / "memory_resource.so")

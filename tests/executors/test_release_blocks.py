"""Borrowed blocks made empty: nothing leaves the pool while something lives in it."""

import pytest
from support.dali_runs import run
from support.fake_cuda import PoolBlock

from fusionloader._native import cuda
from fusionloader.system.gpu_memory import pool
from fusionloader.transforms.executors.dali.prebuilt import Prebuilt
from fusionloader.transforms.executors.device.launch_memory import release_blocks

SIZE = 1 << 20
PART = 512


@pytest.fixture
def block(fake_cuda):
    block = PoolBlock(fake_cuda.allocate(SIZE), SIZE)
    pool.add(block)
    yield block
    for address in range(block.address, block.address + SIZE, PART):
        cuda.pool().free(address)
    if not pool.is_empty():
        pool.remove(block)


class Pipeline:
    """Keeps borrowed memory from its first run to its end, as DALI's do."""

    def __init__(self):
        self.kept = None

    def build(self):
        pass

    def schedule_run(self):
        if self.kept is None:
            self.kept = cuda.pool().allocate(PART, 0)

    def outputs(self):
        return self.kept

    def __del__(self):
        if self.kept is not None:
            cuda.pool().free(self.kept)


def nothing():
    pass


def test_an_empty_block_leaves_the_pool_and_pipelines_stay(block):
    defined = []
    prebuilt = Prebuilt(lambda: defined.append(Pipeline()) or defined[-1])
    release_blocks([block], nothing)
    assert pool.is_empty()
    prebuilt.build()
    assert len(defined) == 1


def test_what_is_cached_is_given_up_first(block):
    cached = [cuda.pool().allocate(PART, 0)]
    prebuilt = Prebuilt(Pipeline)
    kept = prebuilt._pipeline
    release_blocks([block], lambda: cuda.pool().free(cached.pop()) if cached else None)
    assert pool.is_empty()
    assert prebuilt._pipeline is kept


def test_pipelines_that_keep_memory_are_dropped_and_run_again_in_other(block):
    prebuilt = Prebuilt(Pipeline)
    assert run(prebuilt) is not None
    assert pool.live_bytes() == PART
    release_blocks([block], nothing)
    assert pool.is_empty()
    assert run(prebuilt) is None  # there is no block to allocate in


def test_what_only_a_collection_finds_is_found(block):
    pipeline = Pipeline()
    pipeline.itself = pipeline
    pipeline.schedule_run()
    del pipeline
    release_blocks([block], nothing)
    assert pool.is_empty()


def test_nothing_is_returned_while_something_lives_in_it(block, fake_cuda):
    other = PoolBlock(fake_cuda.allocate(SIZE), SIZE)
    pool.add(other)
    kept = [cuda.pool().allocate(SIZE, 0), cuda.pool().allocate(PART, 0)]
    with pytest.raises(RuntimeError, match=f"{SIZE + PART} bytes are still allocated in borrowed"):
        release_blocks([block, other], nothing)
    assert pool.live_bytes(block) + pool.live_bytes(other) == SIZE + PART
    assert cuda.pool().allocate(PART, 0) is None  # nor does anything come in addition
    for address in kept:
        assert cuda.pool().free(address)
    pool.remove(other)

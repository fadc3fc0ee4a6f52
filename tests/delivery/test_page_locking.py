"""Memory that is page-locked for a device is unlocked before it is unmapped, and once."""

import gc
import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.datasets import MadeRows
from support.page_locks import Driver, Point, mapped

from fusionloader import FusionLoader
from fusionloader.engine.iterators.slot_iterator import SlotIterator


@pytest.fixture
def driver(monkeypatch):
    driver, options = Driver(), SlotIterator._manager_options

    def injected(iterator, participants):
        return replace(options(iterator, participants), page_locking=driver)

    monkeypatch.setattr(SlotIterator, "_manager_options", injected)
    return driver


def loader():
    return FusionLoader(MadeRows(torch.arange(40.0)), 4, num_workers=1)


def test_memory_is_unlocked_before_it_is_unmapped(driver):
    assert torch.equal(torch.cat([batch for (batch,) in loader()]), torch.arange(40.0))
    gc.collect()
    assert driver.unlocked > 0 and driver.locked == {}


def test_a_kept_batch_stays_locked_until_it_is_dropped(driver):
    batches = [batch for (batch,) in loader()]
    gc.collect()
    assert all(driver.has(batch.data_ptr()) for batch in batches)
    last = batches[-1][1:]
    address = batches[-1].data_ptr()
    del batches
    gc.collect()
    assert driver.has(address) and mapped(address) and len(driver.locked) == 1
    del last
    gc.collect()
    assert driver.locked == {} and not mapped(address)


def test_a_forked_child_unlocks_nothing(driver):
    batches = list(loader())
    locked = dict(driver.locked)
    child = os.fork()
    if child == 0:
        del batches
        gc.collect()
        os._exit(driver.locked != locked)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_dropped_batch_is_written_again_only_when_the_device_has_read_it(driver, monkeypatch):
    monkeypatch.setattr(Point, "passed", False)
    iterator = iter(FusionLoader(MadeRows(torch.arange(400.0)), 4, num_workers=1))
    (first,) = next(iterator)
    address = first.data_ptr()
    del first
    seen = {batch.data_ptr() for (batch,) in (next(iterator) for _ in range(20))}
    assert address not in seen
    monkeypatch.setattr(Point, "passed", True)
    kept = [batch for (batch,) in iterator]
    assert address in {batch.data_ptr() for batch in kept}


@pytest.fixture
def torchs_streams(fake_cuda, monkeypatch):
    """The current streams of two devices by torch's calls; device 0 is the current one."""
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "ab")
    streams = [fake_cuda.stream(device) for device in (1, 0)][::-1]
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda device: device < 2)
    current = [SimpleNamespace(cuda_stream=stream) for stream in streams]  # and no third one
    monkeypatch.setattr(torch.cuda, "current_stream", current.__getitem__)
    return streams


def test_a_copy_to_a_device_that_is_not_the_current_one_reads_its_own_batch(
    torchs_streams, fake_cuda
):
    there, stream = fake_cuda.allocate(16, device=1), torchs_streams[1]
    loader = FusionLoader(MadeRows(torch.arange(400.0)), 4, num_workers=1, pin_memory=True)
    fake_cuda.hold(stream, True)
    iterator = iter(loader)
    (first,) = next(iterator)
    expected, address = first.view(torch.int32).tolist(), first.data_ptr()
    fake_cuda.write_later(there, address, 16, stream, device=1)
    fake_cuda.enter(0)
    del first
    for _ in range(20):
        next(iterator)
    fake_cuda.hold(stream, False)
    fake_cuda.run()
    assert fake_cuda.words(there, 16) == set(expected)
    kept = [batch for (batch,) in iterator]
    assert address in {batch.data_ptr() for batch in kept}

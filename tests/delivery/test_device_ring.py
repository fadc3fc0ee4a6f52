"""Memory that a GPU worker writes into, which is used again when nothing refers to it."""

import contextlib
import gc
import itertools
import weakref

import pytest
from support.fake_device import FakeDevice
from support.raised_at import CALLS, Steps, needs_returns

from fusionloader._native import cuda as native
from fusionloader.engine.delivery.device_memory import DeviceMemory
from fusionloader.engine.delivery.device_ring import DeviceRing
from fusionloader.system.gpu_memory.errors import CudaError


def test_a_buffer_comes_back_when_its_last_tensor_is_gone(fake_cuda):
    ring = DeviceRing(FakeDevice(fake_cuda))
    assert len(ring.share(2, 64)) == 2
    first, second = ring.acquire(64), ring.acquire(64)
    assert [first.number, second.number, ring.acquire(64)] == [0, 1, None]
    view = first.memory[10:20].view(2, 5)
    ring.end(first)
    row = view[0]
    del view
    assert ring.acquire(64) is None
    array = row.numpy()
    del row
    assert ring.acquire(64) is None
    del array
    ring._collect()
    fake_cuda.run()
    assert ring.acquire(65) is None
    assert ring.acquire(64) is first


def test_no_buffer_is_kept_where_not_all_can_be_had(fake_cuda):
    gc.collect()
    before = fake_cuda.in_use
    ring = DeviceRing(FakeDevice(fake_cuda))
    fake_cuda.refuse("cuMemAlloc_v2", before=2)
    with pytest.raises(CudaError, match="cuMemAlloc failed"):
        ring.share(5, 1 << 20)
    assert fake_cuda.in_use == before
    assert ring.acquire(64) is None
    fake_cuda.refuse("")
    assert len(ring.share(5, 1 << 20)) == 5


@pytest.mark.parametrize("busy", ["copies", "delivery", "default", "current"])
def test_a_buffer_comes_back_when_every_stream_has_passed(fake_cuda, busy):
    device = FakeDevice(fake_cuda)
    delivery, here = fake_cuda.stream(), device.stream
    streams = {"copies": device.copy_stream, "delivery": delivery, "default": 0, "current": here}
    ring = DeviceRing(device)
    ring.share(1, 64)
    buffer = ring.acquire(64)
    buffer.stream = delivery
    fake_cuda.hold(streams[busy], True)
    ring.end(buffer)
    assert ring.acquire(64) is None
    for stream in {*streams.values()} - {streams[busy]}:
        fake_cuda.wait(stream)
    assert ring.acquire(64) is None
    fake_cuda.hold(streams[busy], False)
    fake_cuda.run()
    assert ring.acquire(64) is buffer


@needs_returns
def test_an_exception_loses_no_buffer(fake_cuda):
    for position in itertools.count():
        ring = DeviceRing(FakeDevice(fake_cuda))
        ring.share(2, 64)
        for buffer in ring.acquire(64), ring.acquire(64):
            ring.end(buffer)
        del buffer
        ring._collect()
        fake_cuda.run()
        steps = Steps("engine/delivery/device_ring.py", events=(*CALLS, "c_return"))
        with contextlib.suppress(KeyboardInterrupt):
            steps.raise_at(position, KeyboardInterrupt(), lambda ring=ring: ring.acquire(64))
        if steps.place is None:
            break
        assert {ring.acquire(64).number for _ in range(2)} == {0, 1}, steps.place
    assert position > 0


def test_memory_of_the_device_is_freed_with_its_last_tensor(fake_cuda):
    memory = DeviceMemory(0, 1 << 20)
    gone = weakref.ref(memory)
    tensor = FakeDevice(fake_cuda).tensor(memory)[3:]
    address = memory.address
    del memory
    gc.collect()
    assert gone() is not None
    assert len(native.read(0, address, 16)) == 16
    del tensor
    gc.collect()
    assert gone() is None
    with pytest.raises(Exception, match="INVALID_VALUE"):
        native.read(0, address, 16)

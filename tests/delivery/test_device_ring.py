"""Memory for batches on a device, which is used again when nothing refers to it."""

import gc
import weakref

import pytest
from support.fake_device import FakeDevice

from fusionloader._native import cuda as native
from fusionloader.delivery.device_ring import DeviceRing


def test_a_buffer_comes_back_when_its_last_tensor_is_gone_and_the_device_has_passed(fake_cuda):
    device = FakeDevice(fake_cuda)
    ring = DeviceRing(device)
    first = ring.acquire(64)
    view = first.memory[10:20].view(2, 5)
    ring.deliver(first)
    others = [ring.acquire(64)]
    row = view[0]
    del view
    others.append(ring.acquire(64))
    fake_cuda.hold(device.stream, True)
    del row
    others.append(ring.acquire(64))
    assert first not in others
    fake_cuda.hold(device.stream, False)
    fake_cuda.wait(device.stream)
    assert ring.acquire(64) is first


def test_a_numpy_view_keeps_its_buffer(fake_cuda):
    ring = DeviceRing(FakeDevice(fake_cuda))
    buffer = ring.acquire(8)
    array = buffer.memory.numpy()
    ring.deliver(buffer)
    assert ring.acquire(8) is not buffer
    del array
    ring._collect()
    fake_cuda.run()
    assert ring.acquire(8) is buffer


def test_shared_buffers_are_for_the_gpu_worker_alone(fake_cuda):
    device = FakeDevice(fake_cuda)
    ring = DeviceRing(device)
    assert len(ring.share(2, 64)) == 2
    shared = [ring.acquire_shared(64) for _ in range(3)]
    assert [buffer and buffer.number for buffer in shared] == [0, 1, None]
    unshared = ring.acquire(32)
    behind = native.Event(0, device.stream)
    ring.release(shared[1], behind)
    ring.release(unshared, behind)
    ring._collect()
    fake_cuda.run()
    assert ring.acquire(32) is unshared
    assert ring.acquire_shared(65) is None
    assert ring.acquire_shared(64) is shared[1]


def test_a_buffer_that_is_copied_into_is_not_given_out(fake_cuda):
    device = FakeDevice(fake_cuda)
    ring, copies = DeviceRing(device), fake_cuda.stream()
    buffer = ring.acquire(64)
    fake_cuda.hold(copies, True)
    ring.release(buffer, native.Event(0, copies))
    other = ring.acquire(64)
    assert other is not buffer
    fake_cuda.hold(copies, False)
    fake_cuda.run()
    assert ring.acquire(64) is buffer


def test_memory_of_the_device_is_freed_with_its_last_tensor(fake_cuda):
    device = FakeDevice(fake_cuda)
    memory = device.allocate(1 << 20)
    gone = weakref.ref(memory)
    tensor = device.tensor(memory)[3:]
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

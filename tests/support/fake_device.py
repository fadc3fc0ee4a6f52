"""A device over the fake driver, whose memory the host sees, as deliveries ask for it."""

import contextlib
import ctypes
import functools
import os

import pytest
import torch

from fusionloader._native import cuda as native
from fusionloader.engine.delivery.cuda_device import load_conversion
from fusionloader.engine.delivery.device_batches import DeviceDelivery
from fusionloader.engine.delivery.device_memory import DeviceMemory
from fusionloader.engine.iterators import slot_iterator
from fusionloader.transforms.executors.device.kernel import CONVERT_LEVELS, ENTRIES


def code(device, file):
    # The fake driver has kernels of its own by these names.
    return f"//\n.visible .entry {ENTRIES[file]}()\n".encode()


_LARGER = 4  # times, that a block may be than what is asked for


class Allocator:
    """Torch's caching allocator for one stream, as c10/cuda/CUDACachingAllocator.cpp has it.

    A block that is freed is free again at once, if no other stream was recorded; else when these
    have passed the point where it was freed. This one gives out what was freed last, so that who
    relies on more than that sees its memory written again. It splits no block, and so gives none to
    what needs a small part of it.
    """

    def __init__(self, cuda):
        self._by_torch = cuda.by_torch
        self._freed = []
        self._streams = {}  # that were recorded, by the address of a block in use
        self.allocated_bytes = 0

    def allocate(self, nbytes):
        with self._by_torch():
            for memory, marks in reversed(self._freed):
                fits = nbytes <= memory.nbytes <= _LARGER * nbytes
                if fits and all(mark.query() for mark in marks):
                    self._freed.remove((memory, marks))
                    break
            else:
                self.allocated_bytes += nbytes
                memory = DeviceMemory(0, nbytes)
        self._streams[memory.address] = set()
        return Block(self, memory)

    def free(self, memory):
        with self._by_torch():
            marks = [native.Event(0, stream) for stream in self._streams.pop(memory.address)]
        self._freed.append((memory, marks))

    def record(self, tensor, stream):
        """Raises for memory that it has not allocated, as ``backend:cudaMallocAsync`` does."""
        if address := tensor.untyped_storage().data_ptr():  # 0 for an empty one
            self._streams[address].add(stream)


class Block:
    """Memory of the allocator, which is freed with the last reference."""

    def __init__(self, allocator, memory):
        self.memory = memory
        self._allocator, self._pid = allocator, os.getpid()

    def __del__(self):
        if self._pid == os.getpid():  # in a forked child it is the parent's
            self._allocator.free(self.memory)


class FakeDevice:
    """Training is on ``stream``; with ``converts`` the device makes elements of levels."""

    number = 0

    def __init__(self, cuda, converts=True):
        self._cuda = cuda
        self._allocator = Allocator(cuda)
        self.stream = cuda.stream()
        self.converts = converts

    @functools.cached_property
    def copy_stream(self):
        return native.make_stream(self.number)

    def empty(self, shape, dtype):
        size = torch.Size(shape).numel()
        if size == 0:
            return torch.empty(shape, dtype=dtype)
        block = self._allocator.allocate(size * dtype.itemsize)
        return tensor_over(block.memory, block)[: size * dtype.itemsize].view(dtype).view(shape)

    def upload(self, data):
        tensor = self.empty((len(data),), torch.uint8)
        stream = self.copy_stream
        with self._cuda.by_torch():
            self._cuda.wait(stream)
        ctypes.memmove(tensor.data_ptr(), data, len(data))
        return tensor

    def record_stream(self, tensor):
        self.record(tensor, self.stream)

    def record(self, tensor, stream):
        """As ``tensor.record_stream(stream)``."""
        self._allocator.record(tensor, stream)

    def tensor(self, memory):
        return tensor_over(memory, memory)

    def current_stream(self):
        return self.stream

    def current_streams(self):
        return [(self.number, self.stream)]

    def conversion_kernel(self, file=CONVERT_LEVELS):
        if not self.converts:
            return "asked not to"
        kernel = load_conversion(self.number, code, file)
        return kernel if isinstance(kernel, str) else kernel.function

    def synchronize(self):
        self._cuda.run()

    # ---- what training does ----

    @property
    def allocated_bytes(self):
        """Bytes that the allocator has taken from the driver."""
        return self._allocator.allocated_bytes

    @contextlib.contextmanager
    def on(self, stream):
        """As ``torch.cuda.stream(stream)``."""
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    def run(self):
        """Waits until the device has done all that it was given."""
        self._cuda.run()

    def read(self, tensor):
        """Enqueues a copy of a batch's tensor to the host; the device has to come so far."""
        seen = torch.empty_like(tensor)
        self._cuda.read_later(seen.data_ptr(), tensor.data_ptr(), tensor.nbytes, self.stream)
        return seen


def tensor_over(memory, owner):
    kind = type("Memory", (ctypes.c_char * memory.nbytes,), {})
    array = kind.from_address(memory.address)
    array.owner = owner
    return torch.frombuffer(array, dtype=torch.uint8)


def delivery(cuda, converts=True):
    return DeviceDelivery(FakeDevice(cuda, converts))


@pytest.fixture
def to_fake_device(fake_cuda, monkeypatch):
    """Makes loaders deliver to the fake device; returns a function that returns the deliveries."""
    made = []

    def use(converts=True):
        def deliver(_):
            made.append(delivery(fake_cuda, converts))
            return made[-1]

        monkeypatch.setattr(slot_iterator, "make_delivery", deliver)
        return made

    yield use
    fake_cuda.be_late(False)


def read_epoch(loader, made):
    """The batches of an epoch, as training on the device sees them."""
    seen = []
    for batch in loader:
        seen.append([made[-1].device.read(leaf) for leaf in batch])
    made[-1].device.run()
    return seen

"""A device over the fake driver, whose memory the host sees, as deliveries ask for it."""

import ctypes

import torch

from fusionloader._native import cuda as native
from fusionloader.delivery.device_batches import DeviceDelivery
from fusionloader.delivery.device_memory import DeviceMemory

# The fake driver has a kernel of its own by this name.
PTX = b"//\n.visible .entry fusionloader_convert_levels()\n"


class FakeDevice:
    """Training is on ``stream``; with ``converts`` the device makes elements of levels."""

    number = 0

    def __init__(self, cuda, converts=True):
        self._cuda = cuda
        self.stream = cuda.stream()
        self.converts = converts

    def allocate(self, nbytes):
        return DeviceMemory(self.number, nbytes)

    def tensor(self, memory):
        kind = type("Memory", (ctypes.c_char * memory.nbytes,), {})
        array = kind.from_address(memory.address)
        array.memory = memory
        return torch.frombuffer(array, dtype=torch.uint8)

    def copied(self, tensor):
        memory = self.allocate(tensor.nbytes)
        address = memory.address
        self._cuda.read_later(address, tensor.data_ptr(), tensor.nbytes, self.stream)
        return self.tensor(memory).view(tensor.dtype).view(tensor.shape)

    def current_stream(self):
        return self.stream

    def conversion_kernel(self):
        if not self.converts:
            return "asked not to"
        self._kernel = native.Kernel(self.number, PTX, "fusionloader_convert_levels")
        return self._kernel.function

    # ---- what training does ----

    def run(self):
        """Waits until the device has done all that it was given."""
        self._cuda.run()

    def read(self, tensor):
        """Enqueues a copy of a batch's tensor to the host; the device has to come so far."""
        seen = torch.empty_like(tensor)
        self._cuda.read_later(seen.data_ptr(), tensor.data_ptr(), tensor.nbytes, self.stream)
        return seen


def delivery(cuda, converts=True):
    return DeviceDelivery(FakeDevice(cuda, converts))

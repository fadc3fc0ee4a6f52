"""The few calls of the CUDA driver that tests make themselves, by ctypes: a real one, or a fake.

``FUSIONLOADER_LIBCUDA`` says which library, as for the package.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

_ARGUMENTS = {
    "cuInit": (c_uint,),
    "cuDeviceGet": (c_void_p, c_int),
    "cuDevicePrimaryCtxRetain": (c_void_p, c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuMemAlloc_v2": (c_void_p, c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemGetInfo_v2": (c_void_p, c_void_p),
    "cuStreamCreate": (c_void_p, c_uint),
    "cuStreamSynchronize": (c_void_p,),
    "cuMemsetD32Async": (c_uint64, c_uint, c_size_t, c_void_p),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
}
_NON_BLOCKING = 1


class DriverError(RuntimeError):
    """What the driver said, by CUDA's name for it."""

    def __init__(self, call: str, name: str, code: int) -> None:
        super().__init__(call, name, code)
        self.code = code

    def __str__(self) -> str:
        return "{}: {} ({})".format(*self.args)


class Driver:
    """One device's primary context, which torch and the package use too."""

    def __init__(self, device: int = 0) -> None:
        """Raises OSError without a library, DriverError without a device."""
        self._library = ctypes.CDLL(os.environ.get("FUSIONLOADER_LIBCUDA") or "libcuda.so.1")
        number, self._context = c_int(), c_void_p()
        self._call("cuInit", 0)
        self._call("cuDeviceGet", byref(number), device)
        self._call("cuDevicePrimaryCtxRetain", byref(self._context), number)
        self.enter()

    def enter(self) -> None:
        """Makes the context that of the calling thread."""
        self._call("cuCtxSetCurrent", self._context)

    def allocate(self, nbytes: int) -> int:
        """Returns the address of fresh memory."""
        made = c_uint64()
        self._call("cuMemAlloc_v2", byref(made), nbytes)
        return made.value

    def free(self, address: int) -> None:
        """Frees what ``allocate`` returned."""
        self._call("cuMemFree_v2", address)

    def memory(self) -> tuple[int, int]:
        """Free bytes of the device, and all."""
        free, total = c_size_t(), c_size_t()
        self._call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def stream(self) -> int:
        """Returns a new stream that does not wait for the default one."""
        made = c_void_p()
        self._call("cuStreamCreate", byref(made), _NON_BLOCKING)
        return made.value or 0

    def synchronize(self, stream: int = 0) -> None:
        """Waits until the stream has done everything."""
        self._call("cuStreamSynchronize", stream)

    def fill(self, address: int, word: int, nbytes: int, stream: int) -> None:
        """Enqueues writing a 32-bit word over and over."""
        self._call("cuMemsetD32Async", address, word & 0xFFFFFFFF, nbytes // 4, stream)

    def words(self, address: int, stream: int = 0, count: int = 1) -> list[int]:
        """Returns 32-bit words that are there when the stream comes so far."""
        words = (ctypes.c_uint32 * count)()
        self.synchronize(stream)
        self._call("cuMemcpyDtoH_v2", ctypes.addressof(words), address, 4 * count)
        return list(words)

    def _call(self, name: str, *arguments: object) -> None:
        function = getattr(self._library, name)
        function.argtypes = _ARGUMENTS[name]
        code = function(*arguments)
        if code != 0:
            said = ctypes.c_char_p()
            self._library.cuGetErrorName(c_int(code), byref(said))
            raise DriverError(name, (said.value or b"unknown error").decode(), code)


def why_not() -> str | None:
    """Returns why there is no device, in words, ``None`` if there is one."""
    try:
        Driver()
    except (OSError, DriverError) as error:
        return str(error)
    return None

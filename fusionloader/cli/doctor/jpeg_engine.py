"""Whether the device has a hardware JPEG decoder, asked of nvJPEG."""

from __future__ import annotations

import ctypes
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from fusionloader.cli.doctor.check import Check
from fusionloader.cli.doctor.devices import NO_DEVICE, device_count
from fusionloader.transforms.executors import nvjpeg

_NAME = "hardware JPEG engine"
_ARCHITECTURE_MISMATCH = 7  # NVJPEG_STATUS_ARCH_MISMATCH: the device has none


class NvjpegError(RuntimeError):
    """NvJPEG is missing, too old, or refuses."""


def checks() -> Iterator[Check]:
    """Yields the engines of the first device."""
    if not device_count():
        yield Check(_NAME, NO_DEVICE)
        return
    try:
        count, cores = engines(find_library())
    except NvjpegError as error:
        yield Check(_NAME, f"unknown: {error}", "warn", "pip install nvidia-nvjpeg")
        return
    used = "used by a GPU worker's decoder (hw_decoder_load=1)"
    yield Check(_NAME, f"{count}, {cores} cores each, {used}" if count else "none")


def find_library() -> Path:
    """Returns nvJPEG's file: NVIDIA's package, the toolkit's, or what torchvision brings.

    Raises:
        NvjpegError: there is none.
    """
    found = list(nvjpeg.files())
    vision = importlib.util.find_spec("torchvision")
    if vision is not None and vision.origin is not None:
        found += Path(vision.origin).parents[1].glob("torchvision.libs/libnvjpeg.*")
    if not found:
        raise NvjpegError("nvJPEG (libnvjpeg) is not installed")
    return found[0]


def engines(library: Path) -> tuple[int, int]:
    """Returns how many engines the first device has, and the cores of each.

    Raises:
        NvjpegError: the library does not say.
    """
    handle, count, cores = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint()
    try:
        opened = ctypes.CDLL(str(library))
        create, ask = opened.nvjpegCreateSimple, opened.nvjpegGetHardwareDecoderInfo
    except (OSError, AttributeError) as error:
        raise NvjpegError(f"{library.name} does not do: {error}") from None
    if (status := create(ctypes.byref(handle))) != 0:
        raise NvjpegError(f"nvjpegCreateSimple failed ({status})")
    status = ask(handle, ctypes.byref(count), ctypes.byref(cores))
    opened.nvjpegDestroy(handle)
    if status == _ARCHITECTURE_MISMATCH:
        return 0, 0
    if status != 0:
        raise NvjpegError(f"nvjpegGetHardwareDecoderInfo failed ({status})")
    return count.value, cores.value

"""The nvJPEG that decodes on a CUDA device for DALI and nvImageCodec: its files and its version."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from pathlib import Path

from fusionloader.transforms.executors import nvidia_packages

# Of earlier ones nvImageCodec leaves windows with smooth chroma to a thread of the CPU, because of
# wrong pixels at borders; it says so in libnvjpeg_ext.so.
WINDOWS_SINCE = (13, 2)
_MAJOR, _MINOR = 0, 1  # of libraryPropertyType in library_types.h


def files(name: str = "libnvjpeg.so.*") -> Iterator[Path]:
    """Yields the files of nvJPEG in the order in which nvImageCodec looks for one of that name."""
    folders = [Path(each) for each in os.environ.get("LD_LIBRARY_PATH", "").split(":") if each]
    folders += [folder for package in nvidia_packages.folders() for folder in package.glob("*/lib")]
    for folder in [*folders, Path("/usr/local/cuda/lib64")]:
        yield from sorted(folder.glob(name))


def file_name() -> str:
    """Returns the name by which nvImageCodec loads nvJPEG, of the CUDA that it was built for.

    Raises:
        ImportError: nvImageCodec is not there.
    """
    from nvidia import nvimgcodec

    return f"libnvjpeg.so.{nvimgcodec.__cuda_version__ // 1000}"


@functools.cache
def version() -> tuple[int, int] | None:
    """Loads nvJPEG and returns its version, ``None`` where none can be loaded.

    nvImageCodec then uses this one: a library of its name is loaded once in a process.
    """
    try:
        name = file_name()
        library = ctypes.CDLL(str(next(files(name), name)))
        ask = library.nvjpegGetProperty
    except (ImportError, OSError, AttributeError):
        return None
    major, minor = ctypes.c_int(), ctypes.c_int()
    if ask(_MAJOR, ctypes.byref(major)) or ask(_MINOR, ctypes.byref(minor)):
        return None
    return major.value, minor.value


def decodes_windows() -> bool:
    """Whether it decodes windows as libjpeg upsamples chroma, on the device."""
    found = version()
    return found is not None and found >= WINDOWS_SINCE

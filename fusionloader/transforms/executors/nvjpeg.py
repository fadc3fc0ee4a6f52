"""Files and version of nvJPEG, by which DALI and nvImageCodec decode on a CUDA device."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from fusionloader.transforms.executors import nvidia_packages

_MAJOR, _MINOR = 0, 1  # of libraryPropertyType in library_types.h


def files(name: str = "libnvjpeg.so.*") -> Iterator[Path]:
    """Yields files that match ``name``, in the order in which nvImageCodec looks for them."""
    folders = [Path(each) for each in os.environ.get("LD_LIBRARY_PATH", "").split(":") if each]
    folders += [folder for package in nvidia_packages.folders() for folder in package.glob("*/lib")]
    for folder in [*folders, Path("/usr/local/cuda/lib64")]:
        yield from sorted(folder.glob(name))


def file_name() -> str:
    """Returns the name by which nvImageCodec loads nvJPEG, which depends on its version of CUDA.

    Raises:
        ImportError: nvImageCodec is missing.
    """
    from nvidia import nvimgcodec

    return f"libnvjpeg.so.{nvimgcodec.__cuda_version__ // 1000}"


@functools.cache
def version() -> tuple[int, int] | None:
    """Loads nvJPEG and returns its version; ``None`` if it cannot be loaded.

    nvImageCodec uses the same library: the first one of that name that the process has loaded,
    which may be torchvision's.
    """
    try:
        get_property = _library(file_name()).nvjpegGetProperty
    except (ImportError, OSError, AttributeError):
        return None
    major, minor = ctypes.c_int(), ctypes.c_int()
    if get_property(_MAJOR, ctypes.byref(major)) or get_property(_MINOR, ctypes.byref(minor)):
        return None
    return major.value, minor.value


def _library(name: str) -> ctypes.CDLL:
    with suppress(OSError):
        return ctypes.CDLL(name, os.RTLD_NOLOAD | os.RTLD_LAZY)
    return ctypes.CDLL(str(next(files(name), name)))

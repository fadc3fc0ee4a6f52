"""CUDA's errors, as the runtime library and its header that come with torch say them."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path

from fusionloader.transforms.executors import nvidia_packages

_STAYS = "the process must be terminated"


@dataclass(frozen=True)
class CudaCode:
    """An error of the runtime; ``stays`` where the header says that the process has to end."""

    number: int
    name: str
    text: str
    stays: bool

    @property
    def said(self) -> list[str]:
        """What DALI (``CUDAError`` in dali/core/cuda_error.h) and torch (c10/cuda) make of it."""
        by_dali = f"CUDA runtime API error {self.name} ({self.number}):\n{self.text}"
        return [f"Critical error in pipeline:\n{by_dali}", f"CUDA error: {self.text}"]


def _file(pattern: str) -> Path | None:
    found = [path for folder in nvidia_packages.folders() for path in folder.glob(pattern)]
    return found[0] if found else None


def cuda_codes() -> list[CudaCode]:
    """Returns all that the library knows; none where there is no library or header."""
    library, header = _file("cu1*/lib/libcudart.so.1*"), _file("cu1*/include/driver_types.h")
    if library is None or header is None:
        return []
    runtime = ctypes.CDLL(str(library))
    for call in (runtime.cudaGetErrorName, runtime.cudaGetErrorString):
        call.restype = ctypes.c_char_p
    codes = []
    comment = r"/\*\*((?:(?!\*/).)*)\*/\s*(cudaError\w+)\s*=\s*(\d+)"
    for told, name, number in re.findall(comment, header.read_text(), re.DOTALL):
        if runtime.cudaGetErrorName(int(number)).decode() == name:
            text = runtime.cudaGetErrorString(int(number)).decode()
            words = " ".join(told.replace("*", " ").split())
            codes.append(CudaCode(int(number), name, text, _STAYS in words))
    return codes

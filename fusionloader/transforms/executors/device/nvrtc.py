"""CUDA's run-time compiler (NVRTC), by ctypes.

It comes with torch's wheels, and needs neither a device nor a driver.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_void_p
from pathlib import Path

from fusionloader.transforms.executors import nvidia_packages

_MAJORS = (13, 12)
_FILE = re.compile(r"libnvrtc\.so\.(\d+)(\.\d+)*")


class NvrtcError(RuntimeError):
    """NVRTC is missing, or cannot compile; the message has what to do, or the compiler's log."""


def cuda_major() -> int:
    """Returns the major version of torch's CUDA, which the driver supports; 0 without CUDA."""
    import torch

    return int((torch.version.cuda or "0").split(".")[0])


def how_to_install() -> str:
    """Returns the command that installs NVRTC for torch's CUDA."""
    package = "nvidia-cuda-nvrtc-cu12" if cuda_major() == 12 else "nvidia-cuda-nvrtc"
    return f"pip install {package}"


def why_missing() -> str | None:
    """Returns that NVRTC is missing and how to install it, ``None`` if it is found."""
    if find_library() is not None:
        return None
    return f"CUDA's run-time compiler (libnvrtc) is missing: {how_to_install()}"


def folders() -> Iterator[Path]:
    """Yields folders that may have NVRTC: of pip, of conda, of the CUDA toolkit."""
    for package in nvidia_packages.folders():
        yield from sorted(package.glob("*/lib"))
    yield Path(sys.prefix, "lib")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if home := os.environ.get(name):
            yield Path(home, "lib64")
    yield Path("/usr/local/cuda/lib64")


def find_library() -> str | None:
    """Returns NVRTC's path, or its name if the system's linker finds it; ``None`` without NVRTC.

    The version of torch's CUDA takes precedence: a driver may be too old for code of a later one.
    The library found may still fail to load or to compile.
    """
    wanted = cuda_major()
    majors = sorted(_MAJORS, key=lambda major: major != wanted)
    files: dict[int, Path] = {}
    for folder in folders():
        for file in sorted(folder.glob("libnvrtc.so.*")):
            if known := _FILE.fullmatch(file.name):
                files.setdefault(int(known[1]), file)
    for major in majors:
        if major in files:
            return str(files[major])
    for major in majors:
        name = f"libnvrtc.so.{major}"
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return None


class Nvrtc:
    """The compiler.

    Attributes:
        version: version of NVRTC, such as ``(13, 0)``.
        architectures: architectures that it makes code for, in ascending order: 90 for sm_90.
    """

    def __init__(self, path: str | None = None) -> None:
        """Loads ``path``, or what ``find_library`` finds.

        Raises:
            NvrtcError: the library is missing, or does not load.
        """
        path = path or find_library()
        if path is None:
            raise NvrtcError(why_missing())
        try:
            self._library = ctypes.CDLL(path)
            for name, arguments in _ARGUMENTS.items():
                getattr(self._library, name).argtypes = arguments
            self._library.nvrtcGetErrorString.restype = c_char_p
        except (OSError, AttributeError) as error:
            raise NvrtcError(
                f"CUDA's run-time compiler does not load: {error}; try: {how_to_install()}"
            ) from None
        major, minor, count = c_int(), c_int(), c_int()
        self._call("nvrtcVersion", byref(major), byref(minor))
        self._call("nvrtcGetNumSupportedArchs", byref(count))
        numbers = (c_int * count.value)()
        self._call("nvrtcGetSupportedArchs", numbers)
        self.version = major.value, minor.value
        self.architectures = sorted(numbers)

    def compile(
        self, source: str, name: str, headers: Mapping[str, str], options: Sequence[str]
    ) -> tuple[bytes, str]:
        """Returns the code and the compiler's log.

        Args:
            source: source text of one program.
            name: name of its file, for messages.
            headers: texts of headers by the names in ``#include``.
            options: options of NVRTC. With ``--gpu-architecture=sm_...`` the code is CUBIN, with
                ``compute_...`` it is PTX.

        Raises:
            NvrtcError: the source does not compile; the message has the compiler's log.
        """
        program = c_void_p()
        texts = (c_char_p * len(headers))(*(text.encode() for text in headers.values()))
        names = (c_char_p * len(headers))(*(name.encode() for name in headers))
        self._call(
            "nvrtcCreateProgram",
            byref(program),
            source.encode(),
            name.encode(),
            len(headers),
            texts,
            names,
        )
        try:
            given = (c_char_p * len(options))(*(option.encode() for option in options))
            code = self._library.nvrtcCompileProgram(program, len(options), given)
            log = self._part("ProgramLog", program).rstrip(b"\0").decode(errors="replace").strip()
            if code != 0:
                raise NvrtcError(
                    f"NVRTC cannot compile {name}: {self._error(code)} "
                    f"(options: {' '.join(options)})\n{log}"
                )
            is_ptx = any("compute_" in option for option in options)
            return self._part("PTX" if is_ptx else "CUBIN", program), log
        finally:
            self._library.nvrtcDestroyProgram(byref(program))

    def _part(self, kind: str, program: c_void_p) -> bytes:
        size = c_size_t()
        self._call(f"nvrtcGet{kind}Size", program, byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{kind}", program, buffer)
        return buffer.raw

    def _error(self, code: int) -> str:
        return f"{self._library.nvrtcGetErrorString(code).decode()} ({code})"

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code != 0:
            raise NvrtcError(f"{name} failed: {self._error(code)}")


_STRINGS = POINTER(c_char_p)
_ARGUMENTS: dict[str, tuple[object, ...]] = {
    "nvrtcVersion": (c_void_p, c_void_p),
    "nvrtcGetErrorString": (c_int,),
    "nvrtcGetNumSupportedArchs": (c_void_p,),
    "nvrtcGetSupportedArchs": (c_void_p,),
    "nvrtcCreateProgram": (c_void_p, c_char_p, c_char_p, c_int, _STRINGS, _STRINGS),
    "nvrtcDestroyProgram": (c_void_p,),
    "nvrtcCompileProgram": (c_void_p, c_int, _STRINGS),
    "nvrtcGetProgramLogSize": (c_void_p, c_void_p),
    "nvrtcGetProgramLog": (c_void_p, c_void_p),
    "nvrtcGetCUBINSize": (c_void_p, c_void_p),
    "nvrtcGetCUBIN": (c_void_p, c_void_p),
    "nvrtcGetPTXSize": (c_void_p, c_void_p),
    "nvrtcGetPTX": (c_void_p, c_void_p),
}

"""The code of kernels for a device: compiled when it is first needed, kept for the user."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fusionloader import _native
from fusionloader.system.user_cache import cache_folder
from fusionloader.transforms.executors.device.nvrtc import Nvrtc, NvrtcError

log = logging.getLogger("fusionloader.gpu")

# The files of kernels: the fused one, and the one that makes elements of levels.
AUGMENT, CONVERT_LEVELS = "device/kernel.cu", "device/levels.cu"
# Products and sums are not contracted, and divisions rounded: the host's bits.
_OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
# What the source uses of the standard library, which NVRTC does not have.
_STANDARD_HEADERS = {
    "cstddef": "#pragma once\n",  # size_t, which NVRTC knows by itself
    "cstdint": """#pragma once
using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;
""",
    "cmath": "#pragma once\nnamespace std {\nusing ::isnan;\n}\n",
    "type_traits": """#pragma once
namespace std {
template <class Type>
inline constexpr bool is_trivially_copyable_v = __is_trivially_copyable(Type);
}
""",
}
_DIGEST_BYTES = hashlib.sha256().digest_size


def target_of(architecture: int, known: Sequence[int]) -> str:
    """Returns what to compile for a device: its own code, or PTX that its driver compiles.

    Args:
        architecture: of the device, 90 for sm_90.
        known: those that the compiler knows, in order.

    Raises:
        NvrtcError: the device is older than all of them.
    """
    if architecture in known:
        return f"sm_{architecture}"
    older = [each for each in known if each < architecture]
    if not older:
        raise NvrtcError(
            f"NVRTC makes code for sm_{known[0]} and later, not for this device "
            f"(sm_{architecture}): a torch for an earlier CUDA has one that does"
        )
    return f"compute_{older[-1]}"


def compile_kernel(
    compiler: Nvrtc, target: str, more_options: Sequence[str] = (), file: str = AUGMENT
) -> tuple[bytes, str]:
    """Returns a kernel's code for a target, as ``target_of`` names it, and the compiler's words.

    Raises:
        NvrtcError: it does not compile.
    """
    headers = _native.device_source()
    source = headers.pop(file)
    options = [f"--gpu-architecture={target}", *_OPTIONS, *more_options]
    return compiler.compile(source, file, headers | _STANDARD_HEADERS, options)


def kernel_code(architecture: int, compiler: Nvrtc | None = None, file: str = AUGMENT) -> bytes:
    """Returns a kernel's code for a device's architecture, 90 for sm_90.

    The fused one takes some seconds the first time, and a file of the user's cache afterwards.

    Raises:
        NvrtcError: there is no compiler, or it cannot compile for the device.
    """
    compiler = compiler or Nvrtc()
    target = target_of(architecture, compiler.architectures)
    place = _place(file, target, compiler.version)
    if place is not None and (kept := _read(place)) is not None:
        return kept
    log.info("NVRTC compiles %s for %s, which takes seconds the first time", file, target)
    code, _ = compile_kernel(compiler, target, file=file)
    if place is not None:
        _write(place, code)
    return code


def _place(file: str, target: str, version: tuple[int, int]) -> Path | None:
    """Where the code of this source is kept; ``None`` where the user has no folder."""
    parts = {**_native.device_source(), **_STANDARD_HEADERS}
    made_of = repr((file, sorted(parts.items()), _OPTIONS, target, version))
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    try:
        return cache_folder() / "kernels" / f"{target}-{digest}"
    except RuntimeError as error:  # no home
        log.info("the fused kernel is not kept: %s", error)
        return None


def _read(file: Path) -> bytes | None:
    """The code in a file, ``None`` where there is none or it is damaged: its digest leads it."""
    try:
        content = file.read_bytes()
    except OSError:
        return None
    digest, code = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if hashlib.sha256(code).digest() != digest:
        log.info("%s is damaged: the fused kernel is compiled again", file)
        return None
    return code


def _write(file: Path, code: bytes) -> None:
    """Keeps code, if that is possible.

    Renamed into place: ranks that start together compile it each, and none reads a part of it.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent)
        try:
            with os.fdopen(handle, "wb") as made:
                made.write(hashlib.sha256(code).digest() + code)
            Path(name).replace(file)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        log.info("the fused kernel is compiled at each start, since it cannot be kept: %s", error)

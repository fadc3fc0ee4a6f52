"""Device code of kernels: compiled on first use, then kept in the user's cache folder."""

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

# Source files of the fused kernel, of the kernel that converts levels to elements, and of the fused
# kernel for rows with programs.
AUGMENT, CONVERT_LEVELS = "device/kernel.cu", "device/levels.cu"
AUGMENT_ROWS = "device/program_rows.cu"
ENTRIES = {CONVERT_LEVELS: "fusionloader_convert_levels", AUGMENT_ROWS: "fusionloader_augment_rows"}
"""Names of the kernels that make rows of a batch from rows that were copied, by source file."""
# No contraction of products and sums, and exact divisions: the same bits as on the host.
_OPTIONS = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
# The parts of the standard library that the source uses: NVRTC has none.
_STANDARD_HEADERS = {
    "cstddef": "#pragma once\n",  # size_t is built into NVRTC
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


def choose_target(architecture: int, known: Sequence[int]) -> str:
    """Returns the compiler's target for a device: its own code, or PTX that its driver compiles.

    Args:
        architecture: architecture of the device, such as 90 for sm_90.
        known: architectures that the compiler knows, in ascending order.

    Raises:
        NvrtcError: the device is older than all known architectures.
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
    """Returns a kernel's code for a target of ``choose_target``, and the compiler's log.

    Raises:
        NvrtcError: the kernel does not compile.
    """
    headers = _native.device_source()
    source = headers.pop(file)
    options = [f"--gpu-architecture={target}", *_OPTIONS, *more_options]
    return compiler.compile(source, file, headers | _STANDARD_HEADERS, options)


def kernel_code(architecture: int, compiler: Nvrtc | None = None, file: str = AUGMENT) -> bytes:
    """Returns a kernel's code for the architecture of a device, such as 90 for sm_90.

    Compiling the fused kernel takes some seconds; later calls read it from the user's cache folder.

    Raises:
        NvrtcError: the compiler is missing, or cannot compile for the device.
    """
    compiler = compiler or Nvrtc()
    target = choose_target(architecture, compiler.architectures)
    place = _place(file, target, compiler.version)
    if (code := _read(place)) is not None:
        return code
    log.info("NVRTC compiles %s for %s, which takes seconds the first time", file, target)
    code, _ = compile_kernel(compiler, target, file=file)
    _write(place, code)
    return code


def _place(file: str, target: str, version: tuple[int, int]) -> Path:
    """Returns the cache file for this source and target."""
    parts = {**_native.device_source(), **_STANDARD_HEADERS}
    made_of = repr((file, sorted(parts.items()), _OPTIONS, target, version))
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:16]
    return cache_folder() / "kernels" / f"{target}-{digest}"


def _read(file: Path) -> bytes | None:
    """Returns the code in a file, after its digest; ``None`` if missing or damaged."""
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
    """Writes code to a file, if that is possible.

    The file is renamed into place: ranks that start together all write it, and none reads a part.
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

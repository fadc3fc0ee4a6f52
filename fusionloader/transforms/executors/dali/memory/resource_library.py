"""The library by which DALI allocates in borrowed memory: its path, and how it is built.

It is linked to C++ classes of DALI, so that it fits one exact version of DALI only. It is built on
the user's machine, by ``python -m fusionloader build-dali``.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fusionloader.system.user_cache import cache_folder
from fusionloader.transforms.executors import nvidia_packages

SOURCE = Path(__file__).with_name("memory_resource.cpp")
COMMAND = "python -m fusionloader build-dali"
# The second one is not among the headers that pip installs with torch or DALI.
_CUDA_HEADERS = ("cuda_runtime.h", "crt/host_config.h")


class CannotBuildError(RuntimeError):
    """Something that the build needs is missing, or the compiler failed."""


def library_path(version: str) -> Path:
    """Returns the path of the library for a version of DALI and this source."""
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]
    name = f"memory_resource-{version}-{platform.machine()}-{digest}.so"
    return cache_folder() / "dali" / name


def built_library(version: str) -> Path | None:
    """Returns the library for a version of DALI, ``None`` if it is not built or cannot be read."""
    try:
        library = library_path(version)
        return library if library.exists() else None
    except OSError:  # the home folder of another user
        return None


def build(target: Path | None = None, flags: Sequence[str] = (), source: Path = SOURCE) -> Path:
    """Builds the library for the installed DALI; returns its path.

    Args:
        target: file to write; ``library_path`` by default.
        flags: additional flags for the compiler.
        source: file to compile.

    Raises:
        CannotBuildError: DALI, the compiler or CUDA's headers are missing; says what to install.
    """
    version, headers, libraries, abi = _dali()
    compiler = _compiler()
    try:
        target = target or library_path(version)
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotBuildError(
            f"{error}; set XDG_CACHE_HOME to a folder that can be written"
        ) from None
    # Renamed into place: a process that has loaded the old library keeps it.
    made = target.with_suffix(f".{os.getpid()}")
    command = [compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", *flags]
    command += [*abi, f'-DFUSIONLOADER_DALI_VERSION="{version}"']
    command += ["-isystem", headers, "-isystem", str(_cuda_headers())]
    command += [str(source), f"-L{libraries}", "-ldali_core", "-Wl,--no-undefined"]
    done = subprocess.run([*command, "-o", str(made)], capture_output=True, text=True)
    if done.returncode != 0:
        made.unlink(missing_ok=True)
        raise CannotBuildError(f"{compiler} failed:\n{done.stderr}")
    made.replace(target)
    return target


def _dali() -> tuple[str, str, str, list[str]]:
    """Returns DALI's version, folders of headers and libraries, and flags for its C++ ABI."""
    try:
        import nvidia.dali as dali
        from nvidia.dali import sysconfig
    except ImportError as error:
        raise CannotBuildError(
            f"DALI does not load ({error}); try: pip install nvidia-dali-cuda130 (or -cuda120)"
        ) from None
    headers = Path(sysconfig.get_include_dir())
    if not (headers / "dali/core/mm/default_resources.h").exists():
        raise CannotBuildError(
            f"DALI {dali.__version__} has no headers in {headers}; conda has them in libdali-devel"
        )
    abi = [flag for flag in sysconfig.get_compile_flags() if not flag.startswith("-I")]
    return dali.__version__, str(headers), sysconfig.get_lib_dir(), abi


def _compiler() -> str:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise CannotBuildError(f"no C++ compiler ({compiler}); try: apt-get install g++")
    return compiler


def _cuda_headers() -> Path:
    """Returns the first folder with all headers: of the toolkit, or installed by pip."""
    set_by_user = (os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH"))
    homes = [Path(home) for home in set_by_user if home]
    if nvcc := shutil.which("nvcc"):
        homes.append(Path(nvcc).resolve().parents[1])
    homes.append(Path("/usr/local/cuda"))
    for package in nvidia_packages.folders():
        homes += sorted(package.glob("cu*"), reverse=True)
    folders = [home / "include" for home in homes]
    for folder in folders:
        if all((folder / name).exists() for name in _CUDA_HEADERS):
            return folder
    raise CannotBuildError(
        f"CUDA's headers ({', '.join(_CUDA_HEADERS)}) were not found in "
        f"{', '.join(map(str, folders))}; install the CUDA toolkit, or set CUDA_HOME"
    )

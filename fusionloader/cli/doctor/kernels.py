"""What makes code for a device: CUDA's run-time compiler, and DALI."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterator

from fusionloader.cli.doctor.check import Check, State
from fusionloader.cli.doctor.devices import device_count
from fusionloader.transforms.executors.dali.memory.resource_library import COMMAND, built_library

_KERNEL = 'extern "C" __global__ void doctor(int* out) { *out = 1; }'


def checks() -> Iterator[Check]:
    """Yields the compiler, DALI and what DALI allocates."""
    yield compiler()
    yield dali()
    yield dali_memory()


def compiler() -> Check:
    """Whether a kernel can be compiled: it is done, for the device or the latest architecture."""
    name = "CUDA kernels"
    try:
        from fusionloader.transforms.executors.device.nvrtc import Nvrtc, NvrtcError, how_to_install
    except ImportError as error:
        return Check(name, str(error), "warn", "mend what fails above")
    try:
        nvrtc = Nvrtc()
        target = _target(nvrtc.architectures)
        nvrtc.compile(_KERNEL, "doctor.cu", {}, [f"--gpu-architecture={target}"])
    except NvrtcError as error:
        return _without_compiler(name, str(error), how_to_install())
    return Check(name, f"NVRTC {'.'.join(map(str, nvrtc.version))} compiles for {target}")


def _target(known: list[int]) -> str:
    from fusionloader._native import cuda
    from fusionloader.transforms.executors.device.kernel import choose_target

    return choose_target(cuda.architecture(0) if device_count() else known[-1], known)


def _without_compiler(name: str, why: str, command: str) -> Check:
    """Without a device nothing is to be compiled."""
    state: State = "warn" if device_count() else "ok"
    return Check(name, why, state, command if state == "warn" else "")


def dali() -> Check:
    """Whether DALI loads, which decodes for a GPU worker."""
    installed = installed_dali()
    if installed is None:
        return Check("DALI", "not installed: a GPU worker decodes with it by default")
    name, version = installed
    try:
        importlib.import_module("nvidia.dali")
    except (ImportError, OSError) as error:
        command = f"pip install --force-reinstall {name}"
        return Check("DALI", f"{name} {version} does not load: {error}", "warn", command)
    return Check("DALI", f"{name} {version}")


def installed_dali() -> tuple[str, str] | None:
    """Returns name and version of the package, ``None`` without one."""
    for name in ("nvidia-dali-cuda130", "nvidia-dali-cuda120"):
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def dali_memory() -> Check:
    """Whether ``build-dali`` has built its library for the installed version."""
    name, installed = "DALI's memory", installed_dali()
    if installed is None:
        return Check(name, "none")
    if built_library(installed[1]) is not None:
        return Check(name, "its own, and where a GPU worker borrows, training's")
    return Check(name, f"its own; for training's too: {COMMAND}")

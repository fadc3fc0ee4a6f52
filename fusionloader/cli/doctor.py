"""The doctor command: what this machine has for a data loader, and what to change."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import multiprocessing
import os
from collections.abc import Iterator

from fusionloader.cli.environment import (
    cpu_model,
    cpu_quota,
    gpu,
    memory_sharing,
    simd_level,
    versions,
)
from fusionloader.executors.dali.memory.resource_library import COMMAND, built_library

GIGABYTE = 1e9
# Eight slots of 256 float32 images of 224 x 224: what a usual training keeps in flight.
COMFORTABLE_SHM = 1.5e9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds none."""


def run(options: argparse.Namespace) -> int:
    """Prints facts, then advice; 1 if FusionLoader cannot work here."""
    for name, value in facts().items():
        print(f"{name:<22} {value}")
    failures = list(problems())
    advice = list(warnings())
    print()
    for text in failures:
        print(f"problem: {text}")
    for text in advice:
        print(f"advice:  {text}")
    if not failures and not advice:
        print("no problems found")
    return 1 if failures else 0


def facts() -> dict[str, str]:
    """Returns name and value of everything that is checked."""
    found = dict(versions())
    cores = sorted(os.sched_getaffinity(0))
    quota = cpu_quota()
    size, free = shared_memory()
    found |= {
        "processor": cpu_model(),
        "instruction set": simd_level(),
        "cores of the machine": str(os.cpu_count()),
        "cores allowed": f"{len(cores)} ({_ranges(cores)})",
        "CPU quota": "none" if quota is None else f"{quota:g} cores",
        "/dev/shm": f"{size / GIGABYTE:.1f} GB, {free / GIGABYTE:.1f} GB free",
        "native extension": native_extension() or "works",
        "Pillow's JPEG library": pillow_jpeg(),
        "start method": _start_method(),
        "DALI": _dali() or "not installed",
        "DALI's memory": _dali_memory(),
        "CUDA kernels": _kernels(),
        "GPU": gpu() or "none",
        "GPU memory sharing": memory_sharing(),
    }
    return found


def problems() -> Iterator[str]:
    """Yields what keeps FusionLoader from working."""
    if missing := [name for name, version in versions().items() if version == "missing"]:
        yield f"not installed: {', '.join(missing)}; try: pip install {' '.join(missing)}"
    if error := native_extension():
        yield f"the native extension {error}; build it with: pip install -e ."
    size, free = shared_memory()
    if free < 64e6:
        yield (
            f"/dev/shm has {free / 1e6:.0f} MB free of {size / 1e6:.0f} MB, too little for a "
            "batch; remove files there, or in a container raise it: docker run "
            "--shm-size=8g (Kubernetes: an emptyDir with medium Memory on /dev/shm)"
        )


def warnings() -> Iterator[str]:
    """Yields what makes a loader slower than necessary."""
    cores = len(os.sched_getaffinity(0))
    size, free = shared_memory()
    quota = cpu_quota()
    if 64e6 <= free < COMFORTABLE_SHM:
        yield (
            f"/dev/shm has {free / GIGABYTE:.1f} GB free; large batches may need more. In a "
            "container: docker run --shm-size=8g or --ipc=host"
        )
    if quota is not None and quota < cores:
        yield (
            f"the control group allows {quota:g} cores' time on {cores} cores: use "
            f"num_workers={max(1, int(quota))}, more workers are throttled, not faster"
        )
    machine_cores = os.cpu_count() or cores
    if cores < machine_cores:
        yield (
            f"this process may use {cores} of {machine_cores} cores: num_workers above {cores} "
            "gains nothing (taskset, cpuset or the batch system decides)"
        )
    level = simd_level()
    if level in ("SSE4.1", "NEON"):
        yield (
            f"the processor has {level}, with which images are decoded and resized; augmenting "
            "them is vectorised with AVX2: a sample takes up to 1.5 times as long without"
        )
    if level == "none known":
        yield "the processor has no AVX2, SSE4.1 or NEON: decoding and resizing run at a fraction"
    if os.getloadavg()[0] > cores:
        yield (
            f"the load average is {os.getloadavg()[0]:.1f} on {cores} cores: other processes are "
            "running, measurements will be noisy"
        )
    if "turbo" not in pillow_jpeg():
        yield "Pillow was built without libjpeg-turbo: images that are not compiled decode slowly"


def shared_memory() -> tuple[int, int]:
    """Returns size and free bytes of /dev/shm; zeros without one."""
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return 0, 0
    return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


def native_extension() -> str | None:
    """Returns why the native extension does not load, ``None`` if it does."""
    try:
        importlib.import_module("fusionloader._native")
    except ImportError as error:
        return f"does not load ({error})"
    return None


def pillow_jpeg() -> str:
    """Returns name and version of the JPEG library that Pillow was built with."""
    try:
        from PIL import features
    except ImportError:
        return "Pillow is not installed"
    if features.check_feature("libjpeg_turbo"):
        return f"libjpeg-turbo {features.version_feature('libjpeg_turbo')}"
    return f"libjpeg {features.version_codec('jpg')}"


def _start_method() -> str:
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or f"{multiprocessing.get_all_start_methods()[0]} (the default)"


def _dali() -> str | None:
    for name in ("nvidia-dali-cuda130", "nvidia-dali-cuda120"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _dali_memory() -> str:
    """Returns whether ``build-dali`` has built its library for the installed version."""
    dali = _dali()
    if dali is None:
        return "none"
    if built_library(dali.rpartition(" ")[2]) is not None:
        return "its own, and where a GPU worker borrows, training's"
    return f"its own; for training's too: {COMMAND}"


def _kernels() -> str:
    """Returns what compiles the kernels of this package for a device, or what is missing."""
    try:
        from fusionloader.executors.device.nvrtc import Nvrtc

        return "compiled when needed, by NVRTC " + ".".join(map(str, Nvrtc().version))
    except (ImportError, RuntimeError) as error:
        return str(error)


def _ranges(numbers: list[int]) -> str:
    """Sorted numbers as ranges: 0-3, 8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)

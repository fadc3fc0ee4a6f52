"""What the device, its driver and its libraries are.

python3 -m benchmarks.gpu.facts --json FILE
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.study import append
from fusionloader.system.gpu_memory.errors import MemorySharingError
from fusionloader.transforms.executors import nvjpeg
from fusionloader.transforms.executors.device.kernel import (
    AUGMENT,
    AUGMENT_ROWS,
    CONVERT_LEVELS,
    choose_target,
    compile_kernel,
)
from fusionloader.transforms.executors.device.nvrtc import Nvrtc, NvrtcError

_QUERY = "name,driver_version,memory.total,pcie.link.gen.max,pcie.link.width.max,mig.mode.current"


def said_by(*command: str) -> str | None:
    """Returns a program's words, ``None`` where it is missing or fails."""
    if shutil.which(command[0]) is None:
        return None
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    return done.stdout.strip() if done.returncode == 0 else None


def huge_pages() -> dict[str, str]:
    """Returns where the system gives huge pages for shared memory."""
    folder = Path("/sys/kernel/mm/transparent_hugepage")
    found = {name: folder / name for name in ("enabled", "shmem_enabled")}
    return {name: file.read_text().strip() for name, file in found.items() if file.exists()}


def compilation(architecture: int) -> dict[str, Any]:
    """Returns the seconds that each kernel takes to be compiled."""
    try:
        compiler = Nvrtc()
        target = choose_target(architecture, compiler.architectures)
        seconds: dict[str, Any] = {"nvrtc": compiler.version, "target": target}
        for file in (AUGMENT, CONVERT_LEVELS, AUGMENT_ROWS):
            began = time.perf_counter()
            compile_kernel(compiler, target, file=file)
            seconds[file] = round(time.perf_counter() - began, 2)
    except NvrtcError as error:
        return {"missing": str(error)}
    return seconds


def bandwidth(mib: int = 256) -> dict[str, float]:
    """Returns GB/s to the device, from page-locked and from pageable memory."""
    device = torch.empty(mib << 20, dtype=torch.uint8, device="cuda")
    rates = {}
    for name, pinned in (("page-locked", True), ("pageable", False)):
        host = torch.empty(mib << 20, dtype=torch.uint8, pin_memory=pinned)
        device.copy_(host)
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(4):
            device.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        rates[name] = round(4 * (mib << 20) / (time.perf_counter() - began) / 1e9, 1)
    return rates


def facts() -> dict[str, Any]:
    """Returns all of it."""
    found: dict[str, Any] = {
        "torch_cuda": torch.version.cuda,
        "nvjpeg": nvjpeg.version(),
        "mps": shutil.which("nvidia-cuda-mps-control"),
        "cores": len(os.sched_getaffinity(0)),
        "shm_bytes": os.statvfs("/dev/shm").f_bavail * os.statvfs("/dev/shm").f_frsize,
        "huge_pages": huge_pages(),
        "nvidia_smi": said_by("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader"),
    }
    try:
        from fusionloader._native import cuda

        architecture = cuda.architecture(0)
        found["driver"] = {"library": cuda.library(), "devices": cuda.device_count()}
    except MemorySharingError as error:
        found["driver"], architecture = str(error), 90
    found["architecture"] = architecture
    found["compilation"] = compilation(architecture)
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name()
        found["stream_priorities"] = str(torch.cuda.Stream.priority_range())
        found["gb_per_second"] = bandwidth()
    return found


def main() -> None:
    """Writes the facts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    options = parser.parse_args()
    append(options.json, **facts())


if __name__ == "__main__":
    main()

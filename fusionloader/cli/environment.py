"""Facts about the machine and the installation: versions, cores, shared memory, GPU."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import fusionloader
from fusionloader.system.limits.control_groups import cpu_quota
from fusionloader.system.limits.processors import cores_allowed

JsonObject = dict[str, Any]
"""A JSON object, as reports and files of service times have it."""

PACKAGES = ("torch", "torchvision", "pillow", "numpy", "tqdm")
CODE = ("fusionloader", "csrc")
"""The folders of a clone that figures depend on."""
_STUDIES = ("benchmarks", ":!benchmarks/results")
PEERS = ("nvidia-dali-cuda120", "nvidia-dali-cuda130", "spdl", "ffcv")
# The instruction sets that pixel kernels are written for, widest first.
SIMD_LEVELS = (
    ("avx512vbmi", "AVX-512 VBMI"),
    ("avx512bw", "AVX-512"),
    ("avx2", "AVX2"),
    ("sse4_1", "SSE4.1"),
    ("asimd", "NEON"),
)


def versions() -> dict[str, str]:
    """Returns versions of Python, of required packages and of other loaders that are installed."""
    found = {"python": platform.python_version(), "fusionloader": fusionloader.__version__}
    for name in (*PACKAGES, *PEERS):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if name in PACKAGES:
                found[name] = "missing"
    return found


def provenance() -> JsonObject:
    """Returns what every file of measurements says: when, on which machine and of which code."""
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "source": source(),
        "versions": versions(),
        "machine": machine(),
    }


def source(root: Path = Path(fusionloader.__file__).parents[1]) -> JsonObject | None:
    """Returns the code of a clone: commit, hashes of git's trees, whether files differ from it.

    The hashes still name the code when the commit has been squashed or rebased. ``None`` without
    git, as in an installed copy.
    """
    if not (root / ".git").exists():
        return None
    try:
        return {
            "commit": _git(root, "rev-parse", "--short=12", "HEAD"),
            "trees": {name: _git(root, "rev-parse", f"HEAD:{name}") for name in CODE},
            "uncommitted": bool(_git(root, "status", "--porcelain", "--", *CODE, *_STUDIES)),
        }
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(tree: Path, *arguments: str) -> str:
    command = ["git", "-C", str(tree), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def cpu_model() -> str:
    """Returns the processor's name, family and model as the kernel reports them."""
    name = _cpuinfo("model name")
    if name is None:
        return platform.processor() or platform.machine()
    return f"{name}, family {_cpuinfo('cpu family')}, model {_cpuinfo('model')}"


def simd_level() -> str:
    """Returns the widest instruction set of the processor for which there are pixel kernels.

    ``FUSIONLOADER_SIMD`` in the environment is named instead, since kernels use no more then.
    """
    if chosen := os.environ.get("FUSIONLOADER_SIMD"):
        return f"{chosen}, by FUSIONLOADER_SIMD"
    flags = set((_cpuinfo("flags") or _cpuinfo("Features") or "").split())
    return next((name for flag, name in SIMD_LEVELS if flag in flags), "none known")


def _cpuinfo(key: str) -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def gpu() -> str | None:
    """Returns name and driver of the first GPU, ``None`` without one."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def machine() -> JsonObject:
    """Returns the facts about the machine for a measurement's report."""
    return {
        "cpu": cpu_model(),
        "simd": simd_level(),
        "cores": cores_allowed(),
        "cores_of_machine": os.cpu_count(),
        "cpu_quota": cpu_quota(),
        "load_average": os.getloadavg()[0],
        "gpu": gpu(),
        "system": platform.platform(),
    }

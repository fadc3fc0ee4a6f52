"""CUDA devices, the driver, and whether torch can use them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

from fusionloader.cli.doctor.check import Check
from fusionloader.cli.environment import gpu

NO_DEVICE = "no CUDA device"
_NODES = Path("/dev")


def checks() -> Iterator[Check]:
    """Yields the devices, and torch's view of them."""
    yield devices()
    yield of_torch()


def device_count() -> int:
    """Returns how many devices the driver shows, 0 without one."""
    return 0 if why_none() else _count()


def why_none() -> str:
    """Returns why there is no device, in words; nothing if there is one."""
    from fusionloader.system.gpu_memory.errors import MemorySharingError

    try:
        return "" if _count() else "the driver shows no device"
    except MemorySharingError as error:
        return str(error)


def _count() -> int:
    from fusionloader._native import cuda

    return cuda.device_count()


def devices() -> Check:
    """The devices that this process sees; none is no problem where there is no GPU."""
    name, count = "GPU", device_count()
    if count:
        from fusionloader._native import cuda

        kinds = sorted({f"sm_{cuda.architecture(number)}" for number in range(count)})
        return Check(name, f"{count} ({', '.join(kinds)}); {gpu() or 'nvidia-smi says nothing'}")
    if not has_nodes():
        return Check(name, "none")
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    why = why_none() if hidden is None else f"CUDA_VISIBLE_DEVICES is {hidden!r}; {why_none()}"
    remedy = (
        "export CUDA_VISIBLE_DEVICES=0; in a container: docker run --gpus all "
        "-e NVIDIA_DRIVER_CAPABILITIES=compute,utility"
    )
    return Check(name, f"there, but not to be used: {why}", "warn", remedy)


def has_nodes() -> bool:
    """Returns whether the kernel has a GPU of NVIDIA's, whatever this process may use."""
    return any(_NODES.glob("nvidia[0-9]*"))


def of_torch() -> Check:
    """Whether torch can use the devices."""
    import torch

    name, version = "torch's CUDA", torch.version.cuda
    if not device_count():
        return Check(name, f"{version or 'none'}; {NO_DEVICE}")
    command = "pip install --force-reinstall torch, for the CUDA of the driver (pytorch.org)"
    if version is None:
        return Check(name, "torch is built without CUDA", "warn", command)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it would say is in the line below
        if torch.cuda.is_available():
            return Check(name, f"{version}, works")
    return Check(name, f"{version} does not work: {_what_torch_says()}", "warn", command)


def _what_torch_says() -> str:
    import torch

    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return "it sees no device"

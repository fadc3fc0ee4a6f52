"""A GPU worker on DALI's CPU backend whose augment task is launched through the fake driver."""

from __future__ import annotations

import os
from pathlib import Path

from fusionloader import _native
from fusionloader.gpu import worker
from fusionloader.transforms.executors.device import launchers, make_task, nvrtc
from fusionloader.transforms.executors.device.fused_augment import FusedAugment
from fusionloader.transforms.executors.device.memory import Memory
from fusionloader.transforms.plan.stages import Plan
from support.fake_cuda import FakeCuda

PTX = b"// as far as the fake driver reads it\n.visible .entry fusionloader_augment(\n\0"


class Owner:
    """Frees memory of the device with its last use."""

    def __init__(self, fake: FakeCuda, address: int) -> None:
        self._fake, self._address = fake, address

    def __del__(self) -> None:
        self._fake.free(self._address)


def _augment(plan: Plan, *_: object) -> FusedAugment:
    fake = FakeCuda(Path(os.environ["FUSIONLOADER_LIBCUDA"]))
    fake.set_kernel(
        lambda program, work, blocks, _: _native.run_block_on_host(program, work, blocks)
    )

    def allocate(nbytes: int) -> Memory:
        address = fake.allocate(nbytes)
        return Memory(address, nbytes, Owner(fake, address))

    return FusedAugment(plan, launchers.CudaLauncher(0, fake.stream(), allocate))


def main(config: worker.GpuWorkerConfig) -> None:
    """Serves, as ``fusionloader.gpu.worker`` does."""
    if os.environ.get("WITHOUT_NVRTC"):
        nvrtc.find_library = lambda: None
    else:
        launchers.kernel_code = lambda architecture: PTX
    make_task._augment = _augment
    worker.main(config)

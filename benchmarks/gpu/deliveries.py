"""Batches delivered to the device: right to the bit, and how fast.

    python3 -m benchmarks.gpu.deliveries --json FILE
    python3 -m benchmarks.gpu.deliveries --fake --json FILE

1. That memory freed by training can be given out while a queued kernel still reads it, and that a
   copy on another stream then overtakes that kernel; the loader's own batches do not.
2. Every batch of an epoch is what a CPU loader gives, as 8-bit levels and as floats, while training
   lags behind with long kernels.
3. Samples per second of epochs that nobody trains on, as levels and as floats.
4. The same with RandAugment and RandomErasing, by CPU workers, which send floats, and by the device
   (``decoder="workers"``), to which pixels cross with programs.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from benchmarks.study import append
from fusionloader import FusionLoader, GpuWorker
from fusionloader.cli.corpus import ensure_corpus
from fusionloader.engine.delivery import device_batches
from fusionloader.engine.delivery.cuda_device import CudaDevice
from fusionloader.engine.iterators import slot_iterator
from fusionloader.transforms.executors.device.kernel import CONVERT_LEVELS

_CYCLES = 200_000_000  # of a kernel that does nothing for about a tenth of a second


class AsFloats(CudaDevice):
    """A device that gets floats."""

    def conversion_kernel(self, file: str = CONVERT_LEVELS) -> int | str:
        """See ``CudaDevice``."""
        return "asked not to"


def memory_that_was_freed() -> dict[str, Any]:
    """Shows what a copy that does not wait would do to training's memory."""
    nbytes = 64 << 20
    side = torch.cuda.Stream()
    host = torch.full((nbytes,), 9, dtype=torch.uint8, pin_memory=True)
    outcomes = {}
    for waits in (False, True):
        torch.cuda.empty_cache()
        activations = torch.full((nbytes,), 7, dtype=torch.uint8, device="cuda")
        seen = torch.empty_like(activations)
        torch.cuda.synchronize()
        torch.cuda._sleep(_CYCLES)
        seen.copy_(activations)
        address = activations.data_ptr()
        del activations
        fresh = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
        if waits:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            fresh.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        outcomes["waits" if waits else "does not wait"] = {
            "given_out_again": fresh.data_ptr() == address,
            "training_saw_its_own": bool((seen == 7).all()),
        }
        del fresh, seen
    assert outcomes["waits"]["training_saw_its_own"]
    return outcomes


def transform(side: int, augments: bool = False) -> v1.Compose:
    """Returns a plan that ends in conversion and Normalize; with ``augments``, in erasing."""
    normalize = v1.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    crop = [v1.RandomResizedCrop(side), v1.RandomHorizontalFlip()]
    if not augments:
        return v1.Compose([*crop, v1.ToTensor(), normalize])
    return v1.Compose([*crop, v1.RandAugment(), v1.ToTensor(), normalize, v1.RandomErasing(0.25)])


def augmented(
    plain: ImageFolder, arguments: dict[str, Any], read: Reader, end: Any, file: Path
) -> None:
    """Writes the figures of augmentation by CPU workers, and by the device."""
    side = plain.transform.transforms[0].size[0]
    dataset = ImageFolder(plain.root, transform(side, augments=True))
    wanted = list(FusionLoader(dataset, **{**arguments, "device": None}))
    for name, worker in (("workers augment", None), ("device", GpuWorker(decoder="workers"))):
        given = {**arguments, "gpu_worker": worker}
        equal = compared(dataset, given, wanted, read, end)
        append(file, case=name, equal_batches=equal, **rate(dataset, given, end))


Reader = Callable[[torch.Tensor], torch.Tensor]
Batches = list[list[torch.Tensor]]


def compared(
    dataset: ImageFolder, arguments: dict[str, Any], wanted: Batches, read: Reader, end: Any
) -> int:
    """Returns how many batches were compared with those of a CPU loader, all of them equal."""
    seen = [[read(leaf) for leaf in batch] for batch in FusionLoader(dataset, **arguments)]
    end()
    for ours, theirs in zip(seen, wanted, strict=True):
        for mine, expected in zip(ours, theirs, strict=True):
            assert torch.equal(mine.cpu(), expected), "a batch differs from the CPU's"
    return len(wanted)


def late_reader(tensor: torch.Tensor) -> torch.Tensor:
    """Enqueues a long kernel, then a copy of the batch: training lags behind."""
    torch.cuda._sleep(_CYCLES // 20)
    return tensor.clone()


def rate(dataset: ImageFolder, arguments: dict[str, Any], end: Any) -> dict[str, Any]:
    """Returns samples per second of the second epoch and later ones, and bytes."""
    loader = FusionLoader(dataset, **arguments, persistent_workers=True)
    samples, began = 0, 0.0
    for epoch in range(4):
        if epoch == 1:
            end()
            began = time.perf_counter()
        for images, _ in loader:
            samples += len(images) if epoch else 0
    end()
    seconds = time.perf_counter() - began
    loader.close()  # which counts
    told = loader.stats()
    counted = {name: getattr(told, name) for name in ("shared_memory_bytes", "copied_bytes")}
    return {"samples_per_second": round(samples / seconds, 1), **counted}


@contextmanager
def delivering(make: Callable[[Any], Any]) -> Iterator[None]:
    """Loaders deliver to what ``make`` returns."""
    before, slot_iterator.make_delivery = slot_iterator.make_delivery, make
    try:
        yield
    finally:
        slot_iterator.make_delivery = before


def on_device(dataset: ImageFolder, workers: int, batch_size: int, file: Path) -> None:
    """Writes what the device showed."""
    append(file, case="freed_memory", **memory_that_was_freed())
    end = torch.cuda.synchronize
    arguments = {"batch_size": batch_size, "num_workers": workers, "seed": 1, "device": "cuda"}
    wanted = list(FusionLoader(dataset, **{**arguments, "device": None}))
    for name, kind in (("levels", CudaDevice), ("floats", AsFloats)):
        device = kind(torch.device("cuda"))
        told = device.conversion_kernel()
        assert name == "floats" or isinstance(told, int), f"no conversion on the device: {told}"
        with delivering(lambda _, device=device: device_batches.DeviceDelivery(device)):
            equal = compared(dataset, arguments, wanted, late_reader, end)
            append(file, case=name, equal_batches=equal, **rate(dataset, arguments, end))
    augmented(dataset, arguments, late_reader, end, file)


def over_fake_driver(dataset: ImageFolder, file: Path) -> None:
    """Writes what the fake driver showed, which is nothing of speed."""
    from support.fake_cuda import FakeCuda, build_fake_driver
    from support.fake_device import FakeDevice

    with tempfile.TemporaryDirectory() as folder:
        library = build_fake_driver(Path(folder))
        os.environ["FUSIONLOADER_LIBCUDA"] = str(library)
        cuda = FakeCuda(library)
        arguments = {"batch_size": 8, "num_workers": 2, "seed": 1}
        wanted = list(FusionLoader(dataset, **arguments))
        for name in ("levels", "floats"):
            device = FakeDevice(cuda, converts=name == "levels")
            with delivering(lambda _, device=device: device_batches.DeviceDelivery(device)):
                equal = compared(dataset, arguments, wanted, device.read, cuda.run)
                append(file, case=name, equal_batches=equal, **rate(dataset, arguments, cuda.run))
        device = FakeDevice(cuda)
        given = {**arguments, "device": "cuda:0"}
        with (
            delivering(lambda _: device_batches.DeviceDelivery(device)),
            mock.patch.object(torch.cuda, "device_count", return_value=1),
            mock.patch.object(slot_iterator, "to_device", lambda batch, device: batch),
        ):
            augmented(dataset, given, device.read, cuda.run, file)


def main() -> None:
    """Measures, and writes what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--fake", action="store_true", help="over the fake driver")
    parser.add_argument("--images", type=int, default=1500)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--side", type=int, default=224)
    options = parser.parse_args()
    dataset = ImageFolder(str(ensure_corpus(options.images).train), transform(options.side))
    if options.fake:
        over_fake_driver(dataset, options.json)
    else:
        on_device(dataset, options.workers, options.batch_size, options.json)


if __name__ == "__main__":
    main()

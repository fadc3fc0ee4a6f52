"""Training speed with each loader, as a share of the speed on data already on the device.

    python -m benchmarks.training --models resnet18,resnet50,vit_b_16 --json FILE
    python -m benchmarks.training --device cpu --batch-size 16 --steps 4 --warm-up 1

Contenders' rounds are interleaved; a round trains ``--steps`` steps after ``--warm-up`` ones that
are not counted, nor are those before a GPU worker takes part and has been profiled, or was given up
(``--patience`` seconds at most; ``ready`` says whether it came to that). ``ceiling`` trains on one
batch that stays on the device.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

from benchmarks.study import parser_of, publish
from fusionloader import FusionLoader, GpuWorker
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.contenders import Setting, close_loader, dali_is_installed
from fusionloader.cli.measure.workloads import SIDE, pil_dataset

CLASSES = 1000
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


class Training:
    """A model trained in bfloat16, where the device is a CUDA one."""

    def __init__(self, model: str, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        self.network = getattr(torchvision.models, model)(num_classes=CLASSES).to(device)
        if device.type == "cuda":
            self.network = self.network.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01, momentum=0.9)

    def step(self, images: torch.Tensor, targets: torch.Tensor) -> None:
        """Trains on a batch."""
        on_cuda = self.device.type == "cuda"  # few processors have instructions for it
        with torch.autocast(self.device.type, torch.bfloat16, enabled=on_cuda):
            loss = nn.functional.cross_entropy(self.network(images), targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def rate(self, batches: Batches, warm_up: int, steps: int) -> float:
        """Samples per second of wall time over ``steps`` steps."""
        samples, start = 0, 0.0
        self.wait()
        for number in range(warm_up + steps):
            if number == warm_up:
                self.wait()
                samples, start = 0, time.perf_counter()
            images, targets = next(batches)
            self.step(images, targets)
            samples += len(targets)
        self.wait()
        return samples / (time.perf_counter() - start)

    def until(self, ready: Callable[[], bool], batches: Batches, patience: float) -> bool:
        """Trains until something is ready, at most ``patience`` seconds; returns whether it is."""
        deadline = time.perf_counter() + patience
        while not ready() and time.perf_counter() < deadline:
            self.step(*next(batches))
        return ready()

    def wait(self) -> None:
        """Waits for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class TrainingContender:
    """Endless batches on the device, from a loader that stays set up."""

    def __init__(self, device: torch.device, loader: Any) -> None:
        self._device = device
        self.loader = loader
        self.batches = self._endless()

    def _endless(self) -> Generator[tuple[torch.Tensor, torch.Tensor], None, None]:
        while True:
            for images, targets in self.loader:
                yield (
                    images.to(self._device, non_blocking=True),
                    targets.to(self._device, non_blocking=True),
                )

    @property
    def gpu_worker(self) -> Mapping[str, Any]:
        """What the loader counts of its GPU worker; empty where it has none."""
        return self.loader.stats().gpu_worker if isinstance(self.loader, FusionLoader) else {}

    def ready(self) -> bool:
        """Whether a GPU worker, if there is to be one, takes part as it is going to."""
        told = self.gpu_worker
        wanted = getattr(self.loader, "gpu_worker", None)
        if wanted is None:
            return True
        if not told or told["gone"] is not None:
            return bool(told)
        return not told["profiling"] and (told["samples"] > 0 or told["mode"] == "off")

    def close(self) -> None:
        """Ends the loader's workers."""
        self.batches.close()
        close_loader(self.loader)


def ceiling(device: torch.device, batch_size: int) -> Batches:
    images = torch.randn(batch_size, 3, SIDE, SIDE, device=device)
    targets = torch.randint(CLASSES, (batch_size,), device=device)
    while True:
        yield images, targets


def torch_loader(setting: Setting, device: torch.device, samples: int) -> TrainingContender:
    extra = {"pin_memory": device.type == "cuda"}
    return TrainingContender(device, loader_of(DataLoader, setting, samples, extra))


def fusion_loader(
    setting: Setting, device: torch.device, samples: int, gpu_worker: Any
) -> TrainingContender:
    extra = {"device": device, "gpu_worker": gpu_worker}
    return TrainingContender(device, loader_of(FusionLoader, setting, samples, extra))


def loader_of(kind: Any, setting: Setting, samples: int, extra: dict[str, Any]) -> Any:
    dataset = pil_dataset(setting.folder(), setting.workload)
    return kind(
        dataset,
        setting.batch_size,
        sampler=RandomSampler(dataset, replacement=True, num_samples=samples),
        num_workers=setting.workers,
        persistent_workers=True,
        drop_last=True,
        **extra,
    )


def dali_loader(setting: Setting, device: torch.device) -> TrainingContender:
    from fusionloader.cli.measure.dali import DaliBatches

    folder, device_id = setting.folder(), device.index or 0
    batches = DaliBatches(folder, setting.workload, setting.batch_size, setting.workers, device_id)
    return TrainingContender(device, batches)


def contenders(
    setting: Setting, device: torch.device, samples: int
) -> dict[str, Callable[[], TrainingContender]]:
    on = None if device.type == "cuda" else "cpu"
    workers = {
        "fusion-off": None,
        "fusion-temporal": GpuWorker(device=on, sharing="temporal"),
        "fusion-spatial": GpuWorker(device=on, sharing="spatial"),
        "fusion-thread": GpuWorker(device=on, sharing="spatial", where="thread"),
        "fusion-auto": GpuWorker(device=on),
    }
    found: dict[str, Callable[[], TrainingContender]] = {
        "torch": lambda: torch_loader(setting, device, samples)
    }
    if device.type == "cuda" and dali_is_installed():
        found["dali-gpu"] = lambda: dali_loader(setting, device)
    for name, worker in workers.items():
        found[name] = lambda worker=worker: fusion_loader(setting, device, samples, worker)
    return found


def measure(
    model: str, setting: Setting, device: torch.device, options: Namespace
) -> tuple[dict[str, float], dict[str, Any]]:
    """Returns the median rate of each contender and of the ceiling, and loaders' statistics."""
    training = Training(model, device)
    samples = setting.batch_size * max(options.steps, 50)
    chosen = {
        name: start
        for name, start in contenders(setting, device, samples).items()
        if options.contenders is None or name in options.contenders
    }
    rates: dict[str, list[float]] = {"ceiling": [], **{name: [] for name in chosen}}
    statistics: dict[str, Any] = {}
    for _ in range(options.rounds):
        fixed = ceiling(device, setting.batch_size)
        rates["ceiling"].append(training.rate(fixed, options.warm_up, options.steps))
        # One at a time: other contenders' workers would use cores and device memory.
        for name, start in chosen.items():
            contender = start()
            try:
                ready = training.until(contender.ready, contender.batches, options.patience)
                rate = training.rate(contender.batches, options.warm_up, options.steps)
                rates[name].append(rate)
                statistics[name] = {
                    "ready": ready,
                    "gpu_worker": contender.gpu_worker,
                    **device_memory(device),
                }
            finally:
                contender.close()
    return {name: median(found) for name, found in rates.items()}, statistics


def device_memory(device: torch.device) -> dict[str, int]:
    """Returns the bytes in use on the device by all processes, and this process's peak."""
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {"used_bytes": total - free, "own_peak_bytes": torch.cuda.max_memory_reserved(device)}


def main() -> None:
    parser = parser_of(__doc__, rounds=3)
    parser.add_argument("--models", type=lambda text: text.split(","), default=["resnet18"])
    parser.add_argument("--workloads", type=lambda text: text.split(","), default=["default"])
    parser.add_argument("--worker-counts", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--contenders", type=lambda text: text.split(","))
    parser.add_argument("--device", default="cuda", type=torch.device)
    parser.add_argument("--steps", type=int, default=40, help="counted steps of a round (40)")
    parser.add_argument("--warm-up", type=int, default=20, help="steps before them (20)")
    parser.add_argument(
        "--patience", type=float, default=60.0, help="seconds for a GPU worker to be ready (60)"
    )
    options = parser.parse_args()
    counts = options.worker_counts or [options.workers]
    rows, figures = [], []
    for workload in options.workloads:
        base, corpus = setting_of(options, workload)
        assert isinstance(base.root, Path)
        for workers in counts:
            setting = Setting(workload, workers, base.batch_size, base.root, base.start_method)
            for model in options.models:
                rates, statistics = measure(model, setting, options.device, options)
                case = {"model": model, "workload": workload, "workers": workers}
                figures.append({**case, "rates": rates, "told": statistics, "corpus": corpus})
                for name, rate in rates.items():
                    share, ratio = rate / rates["ceiling"], rate / rates.get("torch", rate)
                    shown = (f"{rate:,.0f}", f"{share:.2f}", f"{ratio:.2f}x")
                    rows.append((model, workload, str(workers), name, *shown))
    header = ("model", "workload", "workers", "loader", "samples/s", "of ceiling", "of torch")
    publish(options, header, rows, cases=figures)


if __name__ == "__main__":
    main()

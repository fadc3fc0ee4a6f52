"""Training speed with each loader, as a share of the speed on data already on the device.

    python -m benchmarks.training --models resnet50 --worker-counts 2,4,8,14 --json FILE
    python -m benchmarks.training --device cpu --models pooling --batch-size 16 --seconds 1

``ceiling`` trains on one batch that stays on the device. Each other cell is one loader, beside so
many workers: it trains until a GPU worker takes part and has been profiled, or is gone
(``--patience`` seconds at most), then for ``--warm-up`` seconds, then for ``--seconds`` that count.
A cell is one JSON line, written when it ends. Its ``state`` is "ready", "gone" (the rate is that of
CPU workers alone), "late", "failed", or "skipped" (after ``--limit`` seconds no cell begins).
``waiting`` is the share of time that training waited for batches, with two steps enqueued at most.
The model ``pooling`` takes next to nothing, for machines without a device.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torchvision
from torch import nn
from torch.utils.data import DataLoader, RandomSampler

from benchmarks.gpu.dmon import Utilisation
from benchmarks.study import append, parser_of
from fusionloader import FusionLoader, GpuWorker
from fusionloader.cli.bench import flags_of, setting_of
from fusionloader.cli.environment import provenance
from fusionloader.cli.measure.contenders import Setting, close_loader, dali_is_installed
from fusionloader.cli.measure.report import table
from fusionloader.cli.measure.workloads import SIDE, pil_dataset
from fusionloader.system.limits.processors import ProcessorCounts
from fusionloader.transforms.executors import nvjpeg

CLASSES = 1000
DEFAULT = "torch,fusion-off,fusion-thread,fusion-temporal,fusion-spatial,dali"
SAMPLES = 1_000_000  # of an epoch: 38 seconds of a cell at 26,000 a second
Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


class Training:
    """A model trained in bfloat16, where the device is a CUDA one."""

    def __init__(self, model: str, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        self.network = network(model).to(device)
        if device.type == "cuda":
            self.network = self.network.to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.01, momentum=0.9)
        self._enqueued: deque[torch.cuda.Event] = deque()
        self.waited = 0.0

    def step(self, batches: Batches) -> int:
        """Trains on the next batch; returns its samples.

        Waits for the step before the last one first: the time until a batch is there is then time
        in which the device has little left to do.
        """
        if len(self._enqueued) == 2:
            self._enqueued.popleft().synchronize()
        began = time.perf_counter()
        images, targets = next(batches)
        self.waited += time.perf_counter() - began
        on_cuda = self.device.type == "cuda"  # few processors have instructions for it
        with torch.autocast(self.device.type, torch.bfloat16, enabled=on_cuda):
            loss = nn.functional.cross_entropy(self.network(images), targets)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        if on_cuda:
            event = torch.cuda.Event()
            event.record()
            self._enqueued.append(event)
        return len(targets)

    def rate(self, batches: Batches, seconds: float) -> dict[str, Any]:
        """Returns samples per second over a time, and the share of it that was spent waiting.

        The longest step, in milliseconds, tells a stall from steps that are all slow. The rest
        tells whether the training thread lacked a core.
        """
        self.wait()
        self.waited, samples, longest = 0.0, 0, 0.0
        counted = ProcessorCounts.now()
        start = before = time.perf_counter()
        while before - start < seconds:
            samples += self.step(batches)
            now = time.perf_counter()
            longest, before = max(longest, now - before), now
        self.wait()
        passed = time.perf_counter() - start
        return {
            "rate": round(samples / passed, 1),
            "waiting": round(self.waited / passed, 3),
            "longest_step_ms": round(longest * 1e3, 1),
            **processors_since(counted),
        }

    def until(self, ready: Callable[[], bool], batches: Batches, patience: float) -> None:
        """Trains until something is ready, at most ``patience`` seconds."""
        deadline = time.perf_counter() + patience
        while not ready() and time.perf_counter() < deadline:
            self.step(batches)

    def wait(self) -> None:
        """Waits for the device."""
        self._enqueued.clear()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def processors_since(earlier: ProcessorCounts) -> dict[str, Any]:
    """Returns what training used of the processors, and what kept it from them.

    Cores that the training process used, the share of the time that its thread waited for a core,
    and the periods in which a CPU quota stopped its processes (``None`` where there is no quota).
    """
    now = ProcessorCounts.now()
    seconds = now.seconds - earlier.seconds
    stopped = [b[1] - a[1] for a, b in zip(earlier.periods, now.periods, strict=True)]
    return {
        "cores": round((now.process_seconds - earlier.process_seconds) / seconds, 2),
        "delayed": round((now.delay_seconds - earlier.delay_seconds) / seconds, 3),
        "throttled_periods": max(stopped, default=None),
    }


def network(model: str) -> nn.Module:
    if model == "pooling":
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, CLASSES))
    made: nn.Module = getattr(torchvision.models, model)(num_classes=CLASSES)
    return made


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

    @property
    def state(self) -> str:
        """Whether a GPU worker, if there is to be one, takes part as it is going to, or is gone."""
        if getattr(self.loader, "gpu_worker", None) is None:
            return "ready"
        told = self.gpu_worker
        if not told or told["gone"] is not None:
            return "gone" if told else "late"
        settled = not told["profiling"] and (told["samples"] > 0 or told["mode"] == "off")
        return "ready" if settled else "late"

    def close(self) -> None:
        """Ends the loader's workers."""
        self.batches.close()
        close_loader(self.loader)


def ceiling(device: torch.device, batch_size: int) -> Batches:
    images = torch.randn(batch_size, 3, SIDE, SIDE, device=device)
    targets = torch.randint(CLASSES, (batch_size,), device=device)
    while True:
        yield images, targets


def torch_loader(setting: Setting, device: torch.device) -> TrainingContender:
    extra = {"pin_memory": device.type == "cuda"}
    return TrainingContender(device, loader_of(DataLoader, setting, extra))


def fusion_loader(setting: Setting, device: torch.device, gpu_worker: Any) -> TrainingContender:
    extra = {"device": device, "gpu_worker": gpu_worker}
    return TrainingContender(device, loader_of(FusionLoader, setting, extra))


def loader_of(kind: Any, setting: Setting, extra: dict[str, Any]) -> Any:
    dataset = pil_dataset(setting.folder(), setting.workload)
    return kind(
        dataset,
        setting.batch_size,
        sampler=RandomSampler(dataset, replacement=True, num_samples=SAMPLES),
        num_workers=setting.workers,
        persistent_workers=True,
        drop_last=True,
        **extra,
    )


def dali_loader(setting: Setting, device: torch.device) -> TrainingContender:
    from fusionloader.cli.measure.dali import DaliBatches

    folder, device_id = setting.folder(), (device.index or 0) if device.type == "cuda" else None
    batches = DaliBatches(folder, setting.workload, setting.batch_size, setting.workers, device_id)
    return TrainingContender(device, batches)


def contenders(
    setting: Setting, device: torch.device
) -> dict[str, Callable[[], TrainingContender]]:
    on = None if device.type == "cuda" else "cpu"
    workers = {
        "fusion-off": None,
        "fusion-temporal": GpuWorker(device=on, sharing="temporal"),
        "fusion-spatial": GpuWorker(device=on, sharing="spatial"),
        "fusion-thread": GpuWorker(device=on, sharing="spatial", where="thread"),
        "fusion-nvjpeg": GpuWorker(device=on, sharing="spatial", decoder="nvjpeg"),
        "fusion-auto": GpuWorker(device=on),
    }
    if device.type == "cuda":
        workers["fusion-workers"] = GpuWorker(decoder="workers")
    found: dict[str, Callable[[], TrainingContender]] = {
        "torch": lambda: torch_loader(setting, device)
    }
    if dali_is_installed():
        found["dali"] = lambda: dali_loader(setting, device)
    for name, worker in workers.items():
        found[name] = lambda worker=worker: fusion_loader(setting, device, worker)
    return found


def cell(
    training: Training,
    start: Callable[[], TrainingContender],
    monitor: Utilisation,
    options: Namespace,
) -> dict[str, Any]:
    """Returns the figures of one loader; an error of it is one of them."""
    try:
        contender = start()
        try:
            training.until(lambda: contender.state != "late", contender.batches, options.patience)
            return {
                "state": contender.state,
                **window(training, contender.batches, monitor, options),
                "gpu_worker": contender.gpu_worker,
                **device_memory(training.device),
            }
        finally:
            contender.close()
    except Exception as error:
        return {"state": "failed", "error": f"{type(error).__name__}: {error}"[:500]}


def window(
    training: Training, batches: Batches, monitor: Utilisation, options: Namespace
) -> dict[str, Any]:
    training.rate(batches, options.warm_up)
    begun = time.monotonic()
    rate = training.rate(batches, options.seconds)
    return {**rate, "utilisation": monitor.since(begun)}


def device_memory(device: torch.device) -> dict[str, int]:
    """Returns the bytes in use on the device by all processes, and this process's peak."""
    if device.type != "cuda":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {"used_bytes": total - free, "own_peak_bytes": torch.cuda.max_memory_reserved(device)}


def main() -> None:
    parser = parser_of(__doc__, rounds=1)
    parser.add_argument("--models", type=lambda text: text.split(","), default=["resnet18"])
    parser.add_argument("--workload", default="default")
    parser.add_argument("--worker-counts", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument(
        "--contenders", type=lambda text: text.split(","), default=DEFAULT.split(",")
    )
    parser.add_argument("--device", default="cuda", type=torch.device)
    parser.add_argument("--seconds", type=float, default=5.0, help="that count, of a cell (5)")
    parser.add_argument("--warm-up", type=float, default=3.0, help="seconds before them (3)")
    parser.add_argument(
        "--patience", type=float, default=12.0, help="seconds for a GPU worker to be ready (12)"
    )
    parser.add_argument("--limit", type=float, default=1e9, help="seconds in which cells begin")
    parser.add_argument("--label", default="", help="a word for each cell")
    options = parser.parse_args()
    counts = options.worker_counts or [options.workers]
    base, corpus = setting_of(options, options.workload)
    assert isinstance(base.root, Path)
    known = {**provenance(), "nvjpeg": nvjpeg.version()}
    append(options.json, **known, flags=flags_of(options), corpus=corpus)
    monitor, rows, deadline = Utilisation(), [], time.monotonic() + options.limit
    try:
        for model in options.models * options.rounds:
            training = Training(model, options.device)
            case = {"label": options.label, "model": model, "workload": options.workload}
            most = window(training, ceiling(options.device, base.batch_size), monitor, options)
            append(options.json, **case, workers=0, loader="ceiling", **most)
            for workers in counts:
                setting = replace(base, workers=workers)
                there = contenders(setting, options.device)
                for name in options.contenders:
                    if name not in there:
                        continue
                    found: dict[str, Any] = {"state": "skipped"}
                    if time.monotonic() < deadline:
                        found = cell(training, there[name], monitor, options)
                    share = round(found.get("rate", 0) / most["rate"], 3)
                    shown = {"workers": workers, "loader": name, "share": share}
                    append(options.json, **case, **shown, **found)
                    rate = f"{found.get('rate', 0):,.0f}"
                    rows.append((model, str(workers), name, rate, str(share), found["state"]))
    finally:
        monitor.close()
    header = ("model", "workers", "loader", "samples/s", "of ceiling", "state")
    print(table(header, rows))


if __name__ == "__main__":
    main()

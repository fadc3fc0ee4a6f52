"""Seconds until a GPU worker can be given work, and until it has gone, as process and as thread.

python3 -m benchmarks.gpu.boot --json FILE
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from torchvision.datasets import ImageFolder

from benchmarks.gpu.deliveries import transform
from benchmarks.study import append
from fusionloader import FusionLoader, GpuWorker
from fusionloader.cli.corpus import ensure_corpus
from fusionloader.gpu.control import GpuControl

_PATIENCE = 90.0


def boot(dataset: ImageFolder, device: str, worker: GpuWorker) -> dict[str, Any]:
    """Returns the seconds; raises where the worker does not come."""
    on = None if device == "cpu" else device
    loader = FusionLoader(
        dataset, 16, num_workers=2, device=on, gpu_worker=worker, persistent_workers=True
    )
    began = time.perf_counter()
    iterator = iter(loader)
    next(iterator)
    first = time.perf_counter() - began
    manager = iterator._manager  # type: ignore[attr-defined]
    control = next(each for each in manager.participants if isinstance(each, GpuControl))
    while not manager.queue.gpu_is_ready:
        control.look(list, list)
        assert control.given_up is None, control.given_up
        told = loader.stats().gpu_worker
        assert time.perf_counter() - began < _PATIENCE, f"it does not come: {told}"
        time.sleep(0.005)
    ready = time.perf_counter() - began
    decoder = loader.stats().gpu_worker["decoder"]
    began = time.perf_counter()
    loader.close()
    ended = time.perf_counter() - began
    seconds = {"first_batch": first, "ready": ready, "closed": ended}
    return {"decoder": decoder, **{name: round(s, 3) for name, s in seconds.items()}}


def main() -> None:
    """Measures both, and writes what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--images", type=int, default=100)
    options = parser.parse_args()
    dataset = ImageFolder(str(ensure_corpus(options.images).train), transform(224))
    on = "cpu" if options.device == "cpu" else None
    for where in ("process", "thread") * 2:
        worker = GpuWorker(device=on, sharing="spatial", where=where)  # type: ignore[arg-type]
        append(options.json, where=where, **boot(dataset, options.device, worker))


if __name__ == "__main__":
    main()

"""Is training with remote workers ever slower than without? `offload="balance"`, and none.

A step of training sleeps, so that it computes for a given share of the time in which one local
worker makes a batch. Epochs with and without a remote worker are interleaved. The remote worker
runs on the same cores: where these are busy it takes from the local worker what it gives.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from statistics import median
from typing import Any

from torchvision.datasets import ImageFolder

from benchmarks.remote_workers import (
    ELEMENTS,
    LOOPBACK,
    loader_of,
    remote_of,
    token,
    worker_process,
)
from benchmarks.study import interleaved, parser_of, publish
from fusionloader import FusionLoader
from fusionloader.cli.bench import setting_of

SHARES = (0.0, 0.5, 0.9)


def epoch_seconds(loader: FusionLoader[Any], step_seconds: float) -> float:
    """Returns the time of an epoch whose steps compute for so long, from its first batch on."""
    batches = iter(loader)
    next(batches)
    start = time.perf_counter()
    for _batch in batches:
        if step_seconds:
            time.sleep(step_seconds)
    return time.perf_counter() - start


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.set_defaults(workers=1, images=1000)
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    dataset = ImageFolder(str(setting.folder().absolute()), ELEMENTS["float32"])
    with ExitStack() as stack:
        token_file = stack.enter_context(token())
        address = stack.enter_context(worker_process(LOOPBACK, token_file))
        remote = remote_of(address, token_file, "shared", "balance")
        loaders: Mapping[str, FusionLoader[Any]] = {
            "without": stack.enter_context(loader_of(dataset, options, None)),
            "with": stack.enter_context(loader_of(dataset, options, remote)),
        }
        alone = min(epoch_seconds(loaders["without"], 0.0) for _ in range(2))
        for _ in range(2):
            epoch_seconds(loaders["with"], 0.0)
        batch_seconds = alone / (len(loaders["without"]) - 1)
        # A step that computes for a share s of the time takes s / (1 - s) times what it waits.
        steps = {share: batch_seconds * share / (1 - share) for share in SHARES}
        rows, measured = [], []
        for share, step in steps.items():
            once = {
                name: lambda loader=loader, step=step: epoch_seconds(loader, step)
                for name, loader in loaders.items()
            }
            found = interleaved(once, options.rounds)
            ratio = median(
                with_ / without
                for with_, without in zip(found["with"], found["without"], strict=True)
            )
            middle = [f"{median(found[name]):.2f}" for name in ("without", "with")]
            rows.append((f"{share:.0%}", f"{1e3 * step:.0f}", *middle, f"{ratio:.3f}"))
            measured.append({"share": share, "step_seconds": step, "epoch_seconds": found})
        stats = loaders["with"].stats().remote
        assert stats is not None
        print(f"{stats.share or 0:.0%} of the samples of loaders with it were made by it")
    header = ("computes", "step ms", "epoch s without", "with a remote worker", "ratio")
    publish(options, header, rows, measured=measured, corpus=corpus)


if __name__ == "__main__":
    main()

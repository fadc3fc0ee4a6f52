"""Is training with remote workers ever slower than without? `offload="balance"`, and none.

A step of training sleeps, so that it computes for a given share of the time in which one local
worker makes a batch. Epochs with and without a remote worker are interleaved. One remote worker is
real and runs on the same cores, of which it takes what it gives. The other one sleeps for 3 ms a
tiny-batch instead of computing, as if its core were another machine's.
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
from benchmarks.sleeping_workers import sleeping_workers
from benchmarks.study import interleaved, parser_of, publish
from fusionloader import FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.system.transport.identity import read_token

SHARES = (0.0, 0.5, 0.9)
_WORK_SECONDS = 0.003


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
        (elsewhere,) = stack.enter_context(
            sleeping_workers(read_token(token_file), 1, 1, _WORK_SECONDS)
        )
        remotes = {
            "on the same cores": remote_of(address, token_file, "shared", "balance"),
            "that sleeps": remote_of(str(elsewhere), token_file, "shared", "balance"),
        }
        loaders: Mapping[str, FusionLoader[Any]] = {
            "without": stack.enter_context(loader_of(dataset, options, None)),
            **{
                name: stack.enter_context(loader_of(dataset, options, remote))
                for name, remote in remotes.items()
            },
        }
        alone = min(epoch_seconds(loaders["without"], 0.0) for _ in range(2))
        for name in (*remotes, *remotes):
            epoch_seconds(loaders[name], 0.0)
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
            cells = [f"{median(found['without']):.2f}"]
            for name in remotes:
                pairs = zip(found[name], found["without"], strict=True)
                ratio = median(with_ / without for with_, without in pairs)
                cells += [f"{median(found[name]):.2f}", f"{ratio:.3f}"]
            rows.append((f"{share:.0%}", f"{1e3 * step:.0f}", *cells))
            measured.append({"share": share, "step_seconds": step, "epoch_seconds": found})
        for name in remotes:
            stats = loaders[name].stats().remote
            assert stats is not None
            print(f"a worker {name} made {stats.share or 0:.0%} of its loader's samples")
    header = (
        "computes",
        "step ms",
        "epoch s without",
        *[text for name in remotes for text in (f"with one {name}", f"ratio of one {name}")],
    )
    publish(options, header, rows, measured=measured, corpus=corpus)


if __name__ == "__main__":
    main()

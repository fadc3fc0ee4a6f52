"""What a cache costs: memory of four ranks against that of one, and filling it in an epoch."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks.study import parser_of, publish
from fusionloader import Cache, FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.processes import cpu_between, read_cpu
from fusionloader.cli.measure.report import announce
from fusionloader.cli.measure.workloads import pil_dataset

TIERS: dict[str, tuple[Any, ...]] = {
    "none": (),
    "index": ("index",),
    "encoded": ("encoded",),
    "decoded": ("decoded",),
}
RANKS = 4
HEADER = ("tier", "MiB, 1 rank", "4 ranks", "times", "CPU ms a sample, filling", "times none",
          "later")  # fmt: skip


def loader_of(dataset: Any, options: Any, tiers: tuple[Any, ...], **changes: Any) -> Any:
    return FusionLoader(
        dataset,
        options.batch_size,
        num_workers=options.workers,
        persistent_workers=True,
        cache=Cache("12GiB", tiers=tiers) if tiers else None,
        **changes,
    )


def rank_main(arguments: dict[str, Any]) -> None:
    """Fills a rank's share, says which memory it has, and waits until all have."""
    options, _ = _parser().parse_known_args(arguments["flags"])
    setting, _ = setting_of(options, "default")
    dataset = pil_dataset(setting.folder(), "default")
    share = range(arguments["rank"], len(dataset), arguments["ranks"])
    loader = loader_of(dataset, options, tuple(arguments["tiers"]), sampler=share)
    for _ in loader:
        pass
    print("filled", flush=True)
    input()
    memory = loader._iterator_factory._cache.memory
    found = [os.fstat(fd) for fd in memory.fds().values()]
    print(json.dumps({info.st_ino: 512 * info.st_blocks for info in found}), flush=True)
    input()


def memory_of(ranks: int, tiers: tuple[Any, ...]) -> int:
    """Returns the bytes that a dataset's stores take in all of some ranks together."""
    with tempfile.TemporaryDirectory() as runtime:
        environ = {**os.environ, "XDG_RUNTIME_DIR": runtime}
        jobs = []
        for rank in range(ranks):
            arguments = {"rank": rank, "ranks": ranks, "tiers": tiers, "flags": sys.argv[1:]}
            command = [sys.executable, "-m", "benchmarks.cache_sharing", "--rank"]
            jobs.append(subprocess.Popen(
                [*command, json.dumps(arguments)], env=environ, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            ))  # fmt: skip
        for job in jobs:
            assert _said(job) == "filled"
        for job in jobs:
            _tell(job)
        found: dict[str, int] = {}
        for job in jobs:
            found |= json.loads(_said(job))
        for job in jobs:
            job.communicate("\n")
    return sum(found.values())


def _said(job: subprocess.Popen[str]) -> str:
    assert job.stdout is not None
    return job.stdout.readline().strip()


def _tell(job: subprocess.Popen[str]) -> None:
    assert job.stdin is not None
    job.stdin.write("\n")
    job.stdin.flush()


def cpu_ms(dataset: Any, options: Any, tiers: tuple[Any, ...]) -> tuple[float, float]:
    """Returns the CPU of an epoch that fills a cache, and of the next, per sample."""
    with tempfile.TemporaryDirectory() as runtime:
        os.environ["XDG_RUNTIME_DIR"] = runtime
        loader = loader_of(dataset, options, tiers)
        for _ in zip(loader, range(4), strict=False):  # workers begin
            pass
        loader.close()
        loader = loader_of(dataset, options, tiers)
        found = []
        for _ in range(2):
            before = read_cpu()
            for _ in loader:
                pass
            found.append(sum(cpu_between(before, read_cpu())) / len(dataset) * 1e3)
        loader.close()
    return found[0], found[1]


def _parser() -> Any:
    return parser_of(__doc__, rounds=5)


def main() -> None:
    options = _parser().parse_args()
    setting, corpus = setting_of(options, "default")
    dataset = pil_dataset(setting.folder(), "default")
    cpu: dict[str, list[tuple[float, float]]] = {name: [] for name in TIERS}
    for number in range(options.rounds):
        for name, tiers in TIERS.items():
            cpu[name].append(cpu_ms(dataset, options, tiers))
        announce(f"round {number + 1}/{options.rounds}")
    none = statistics.median(first for first, _ in cpu["none"])
    rows = []
    for name, tiers in TIERS.items():
        one, four = (memory_of(ranks, tiers) if tiers else 0 for ranks in (1, RANKS))
        first, later = (statistics.median(each) for each in zip(*cpu[name], strict=True))
        rows.append((
            name, f"{one / 2**20:.1f}", f"{four / 2**20:.1f}", f"{four / one:.3f}" if one else "",
            f"{first:.3f}", f"{first / none:.3f}", f"{later:.3f}",
        ))  # fmt: skip
    publish(options, HEADER, rows, corpus=corpus)


if __name__ == "__main__":
    if "--rank" in sys.argv:
        rank_main(json.loads(sys.argv[sys.argv.index("--rank") + 1]))
    else:
        main()

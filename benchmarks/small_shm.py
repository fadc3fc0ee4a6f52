"""Speed where /dev/shm has Docker's 64 MB, beside a large one: FusionLoader's and DataLoader's."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from benchmarks.study import interleaved, parser_of, publish
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.contenders import contenders_for

NAMES = ("fusionloader", "torch-pil")
FULL = ("unable to allocate shared memory", "No space left on device", "Bus error")
SIZES = {"64 MB": "64m", "large": "50%"}  # of /dev/shm; the second is what a machine has


def epochs(options: argparse.Namespace, name: str) -> float:
    """Returns images per second of the epochs after the first one, in this process."""
    setting, _ = setting_of(options, "default")
    (contender,) = contenders_for(setting, (name,))
    running = contender.start()
    rates = []
    try:
        for _ in range(1 + options.epochs):
            started = time.perf_counter()
            samples = sum(running.epoch())
            rates.append(samples / (time.perf_counter() - started))
    finally:
        running.close()
    return statistics.median(rates[1:])


def in_small_shm(name: str, size: str, arguments: list[str]) -> float:
    """Returns the same of a process with a /dev/shm of its own; 0.0 where it finds it full."""
    mount = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", mount, "sh", sys.executable]
    done = subprocess.run(
        [*command, "-m", "benchmarks.small_shm", *arguments, "--contender", name],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        if not any(sign in done.stderr for sign in FULL):
            raise SystemExit(done.stderr)
        print(f"{name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return 0.0
    return float(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = parser_of(__doc__, rounds=5)
    parser.add_argument("--epochs", type=int, default=2, help="counted epochs a round (2)")
    parser.add_argument("--contender", choices=NAMES, help="measures this one here, and only that")
    options = parser.parse_args()
    if options.contender is not None:  # --json is the other process's
        print(json.dumps(epochs(options, options.contender)))
        return
    if os.geteuid() != 0:
        raise SystemExit("small_shm: mounting a /dev/shm of its own needs root")
    _, corpus = setting_of(options, "default")  # made before anything is measured
    measurements: dict[str, Callable[[], float]] = {
        f"{name}, {size}": partial(in_small_shm, name, mounted, sys.argv[1:])
        for name in NAMES
        for size, mounted in SIZES.items()
    }
    values = interleaved(measurements, options.rounds)
    rows = []
    for name in NAMES:
        small, large = (values[f"{name}, {size}"] for size in SIZES)
        ratios = [one / other for one, other in zip(small, large, strict=True) if other]
        fails = not all(small)
        rows.append(
            (
                name,
                "fails" if fails else f"{statistics.median(small):,.0f}",
                f"{statistics.median(large):,.0f}",
                "-" if fails else f"{statistics.median(ratios):.2f}",
            )
        )
    header = ("contender", "images/s with 64 MB", "with a large one", "share")
    publish(options, header, rows, rates=values, corpus=corpus)


if __name__ == "__main__":
    main()

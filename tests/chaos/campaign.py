"""Runs of all kinds, until it is enough."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from support.images import photo
from support.waiting import left_behind

from chaos.disk import SmallDisk
from chaos.faults import faults_of
from chaos.kinds.setting import IMAGES, EpochKind
from chaos.registry import KINDS
from chaos.run import Laboratory, run
from chaos.shim import FaultySystem
from chaos.tally import Tally


def missing(kind: EpochKind) -> list[str]:
    """Returns modules that a kind needs and that are not installed."""
    return [name for name in kind.needs if importlib.util.find_spec(name) is None]


@contextlib.contextmanager
def _surroundings(system: FaultySystem) -> Iterator[None]:
    """What processes have that are started within: the library, and no core files."""
    before, cores = dict(os.environ), resource.getrlimit(resource.RLIMIT_CORE)
    os.environ.update(system.environment)
    resource.setrlimit(resource.RLIMIT_CORE, (0, cores[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, cores)
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def laboratory(steps: int) -> Iterator[Laboratory]:
    """Images, a faulty system, and a small disk, for runs of so many batches."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        root = Path(folder)
        generator = np.random.default_rng(0)
        for number in range(IMAGES):
            made = root / "images" / f"class{number % 2}"
            made.mkdir(parents=True, exist_ok=True)
            width, height = (int(side) for side in generator.integers(40, 160, 2))
            photo(generator, width, height).save(made / f"{number:03}.jpg", quality=90)
        system = FaultySystem(root)
        with _surroundings(system):
            disk = SmallDisk(root / "disk")
        yield Laboratory(disk, system, root / "images", root, 3 + steps // 25)


def campaign(
    place: Laboratory,
    kinds: list[EpochKind],
    seed: int,
    steps: int,
    *,
    seconds: float = float("inf"),
    kills: float = float("inf"),
    runs: float = float("inf"),
    only_kills: bool = False,
    say: bool = False,
) -> dict[str, Tally]:
    """Runs kinds in turn, until the first of the limits; returns what was counted, by kind.

    The run of number n has seed + n.
    """
    tallies = {kind.name: Tally() for kind in kinds}
    began = time.monotonic()
    for number in itertools.count():
        total = sum(sum(tally.kills.values()) for tally in tallies.values())
        if number >= runs or total >= kills or time.monotonic() - began >= seconds:
            memory = left_behind(*place.ended)
            assert not memory, f"shared memory is left of {number} runs from seed {seed}: {memory}"
            return tallies
        kind = kinds[number % len(kinds)]
        at = time.monotonic()
        tally = run(place, kind, seed + number, steps, faults_of(kind, only_kills))
        tallies[kind.name].add(tally)
        if say:
            print(
                f"{time.monotonic() - began:6.0f} s  {kind.name}, seed {seed + number}: "
                f"{tally.batches} batches, {tally.faults.total()} faults, "
                f"{tally.kills.total()} signals, {time.monotonic() - at:.1f} s",
                flush=True,
            )


def chosen(name: str | None) -> list[EpochKind]:
    """Returns the kinds that can be run here, or the one that is named."""
    kinds = [KINDS[name]] if name else list(KINDS.values())
    return [kind for kind in kinds if not missing(kind)]

"""Epochs of all kinds in one process, for hours: ``make soak``.

A line of JSON for each round through the kinds, which names the mappings that have grown by a MiB;
at the end the slope of its memory that belongs to no file, by least squares over the second half of
the time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from chaos.campaign import missing
from chaos.epoch_process import begin_at
from chaos.kinds.setting import EpochKind, Setting
from chaos.registry import KINDS
from support.images import photo

from soak.held import allocated, anonymous_by_map, anonymous_bytes, held
from soak.loaders import drop_some

_MOST_GROWTH = 1 << 20  # bytes an hour
_ROUNDS_OF_LOADERS = 8
_WARM_UP = 2  # rounds


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=7200)
    parser.add_argument("--json", type=Path, help="file for what was measured")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        rounds = _rounds(folder, options.seconds)
    grown = {
        name: (rounds[_WARM_UP]["held"].get(name, 0), count)
        for name, count in rounds[-1]["held"].items()
        if count > rounds[_WARM_UP]["held"].get(name, 0)
    }
    slope = _slope(rounds)
    found = {
        "seconds": rounds[-1]["seconds"],
        "rounds": len(rounds),
        "epochs": rounds[-1]["epochs"],
        "loaders_dropped": len(rounds) * _ROUNDS_OF_LOADERS,
        "bytes_an_hour": round(slope),
        "more_than_before": grown,
        "curve": [(entry["seconds"], entry["bytes"]) for entry in rounds],
    }
    print(json.dumps({name: value for name, value in found.items() if name != "curve"}, indent=2))
    print(f"{found['epochs']} epochs, {found['bytes_an_hour']} bytes an hour, more held: {grown}")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(found) + "\n")
    return 0 if not grown and slope < _MOST_GROWTH else 1


def _rounds(folder: str, seconds: float) -> list[dict]:
    generator = np.random.default_rng(0)
    for number in range(40):
        made = Path(folder) / "images" / f"class{number % 2}"
        made.mkdir(parents=True, exist_ok=True)
        width, height = (int(side) for side in generator.integers(40, 160, 2))
        photo(generator, width, height).save(made / f"{number:03}.jpg", quality=90)
    kinds = [kind for kind in KINDS.values() if kind.processes == 1 and not missing(kind)]
    began, epochs, rounds, maps = time.monotonic(), 0, [], anonymous_by_map()
    while len(rounds) <= _WARM_UP + 1 or time.monotonic() - began < seconds:
        if len(rounds) == _WARM_UP:
            _fill_interned()
        for kind in kinds:
            epochs += epochs_of(kind, folder, len(rounds))
        for number in range(_ROUNDS_OF_LOADERS):
            drop_some(f"{folder}/images", number)
        rounds.append(
            {
                "held": held(),
                "bytes": anonymous_bytes(),
                "seconds": round(time.monotonic() - began, 1),
                "epochs": epochs,
                "allocated": allocated(),
            }
        )
        before, maps = maps, anonymous_by_map()
        grown = {name: more for name, more in (maps - before).items() if more >= _MOST_GROWTH}
        print(json.dumps({**rounds[-1], **({"grown": grown} if grown else {})}), flush=True)
    return rounds


def _fill_interned() -> None:
    """Has Python's table of interned strings grow now, which it does once, by 3.8 MB.

    It keeps the places of strings that are gone until it is full. An epoch takes about 13 places.
    """
    for number in range(100_000):
        sys.intern(f"string {number}")


def epochs_of(kind: EpochKind, folder: str, number: int) -> int:
    """Takes an epoch of each part of a kind, beside one another."""
    own = Path(folder) / kind.name.replace(" ", "-").replace(",", "")
    own.mkdir(exist_ok=True)
    images = own / "images"
    if not images.exists():
        images.symlink_to(Path(folder) / "images")
    epochs = kind.make(Setting(kind.name, "", str(own), str(own), word=f"soak-{number}"))
    for part in epochs.parts:
        begin_at(part, number)
    iterators = [iter(part.loader) for part in epochs.parts]
    while iterators:
        iterators = [iterator for iterator in iterators if next(iterator, None) is not None]
    epochs.close()
    return len(epochs.parts)


def _slope(rounds: list[dict]) -> float:
    """Bytes an hour."""
    half = [entry for entry in rounds if entry["seconds"] >= rounds[-1]["seconds"] / 2]
    if len(half) < 2:
        return 0.0
    hours = [entry["seconds"] / 3600 for entry in half]
    return statistics.linear_regression(hours, [entry["bytes"] for entry in half]).slope


if __name__ == "__main__":
    sys.exit(main())

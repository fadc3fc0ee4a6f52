"""What do decoded images in a part of the memory give, where a policy augments each image anew?

Revamper keeps samples that are augmented half way, decoded as well, and reuses them for some epochs
(Lee et al., "Refurbish Your Training Data", USENIX ATC 2021). Here a ``DecodedCache`` keeps decoded
images, and every augmentation is fresh. ``at most`` is what samples that need no more than a crop
after the cache would give for the same memory, which is more than any half-way cache can.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.breadth import contender
from benchmarks.study import parser_of, publish
from fusionloader import DecodedCache, FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.protocol import measure
from fusionloader.cli.measure.report import announce, summary
from fusionloader.cli.measure.workloads import pil_dataset

PARTS = (0.16, 0.5, 1.0)
"""Of the decoded images; the paper's machine has room for 16 % of its dataset."""
SPARE = 1.15  # of the images' mean size: whole pages, tables, and images of other sizes


def cached(budget: int) -> Callable[..., FusionLoader[Any]]:
    """Returns what makes loaders with a cache that ends with them: living ones would share it."""
    return lambda *given, **named: FusionLoader(*given, cache=DecodedCache(budget), **named)


def main() -> None:
    parser = parser_of(__doc__.splitlines()[0] if __doc__ else None, rounds=5)
    options = parser.parse_args()
    setting, corpus = setting_of(options, "randaugment")
    folder: Path = setting.folder()
    augmented = pil_dataset(folder, "randaugment")
    decoded = int(3 * corpus["mean_pixels"] * SPARE * len(augmented))
    plain = contender("no cache", FusionLoader, augmented, options)
    budgets = {f"{part:.0%}": int(part * decoded) for part in PARTS}
    told = {}
    for name in ("torch", *budgets, "crop alone"):
        dataset = pil_dataset(folder, "default") if name == "crop alone" else augmented
        kind: Any = DataLoader if name == "torch" else cached(budgets.get(name, decoded))
        other = contender(name, kind, dataset, options)
        pair, _ = measure([plain, other], options.rounds, retries=0, announce=announce)
        told[other.name] = summary(pair[1], pair[0])
        told[other.name]["cpu_ratio"] = (
            summary(pair[0], pair[0])["cpu_seconds_per_1000"]
            / told[other.name]["cpu_seconds_per_1000"]
        )
    rows = []
    for name, part in {"torch": 0.0, **dict(zip(budgets, PARTS, strict=True))}.items():
        bound = 1 / (1 - part + part / told["crop alone"]["cpu_ratio"])
        figures = told[name]
        cells = (f"{figures['ratio']:.2f}", f"{figures['cpu_ratio']:.2f}")
        rows.append((name, *cells, f"{bound:.2f}" if part else ""))
    header = ("decoded images kept", "x", "CPU x", "at most CPU x")
    publish(options, header, rows, contenders=list(told.values()), corpus=corpus)


if __name__ == "__main__":
    main()

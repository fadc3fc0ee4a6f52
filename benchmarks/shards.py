"""What reading from shards costs: an image folder, and ranges of the same files in one shard."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from benchmarks.study import parser_of, publish
from fusionloader import FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.contenders import close_loader
from fusionloader.cli.measure.processes import cpu_between, read_cpu
from fusionloader.cli.measure.workloads import pil_dataset
from fusionloader.cli.progress import Progress
from fusionloader.data.sources import ByteRanges, EncodedImages
from fusionloader.options.aliases import AnyDataset

ONE, MANY = 1, 64  # shards; a worker keeps 32 of them open


def shards_of(folder: ImageFolder, root: Path, count: int) -> EncodedImages:
    """Writes a folder's files one after the other into shards, in turn."""
    files = [root / f"{count}-{number}.bin" for number in range(count)]
    columns: list[tuple[int, int, int]] = []
    for path in files:
        path.touch()
    for index, (path, _) in enumerate(folder.samples):
        number = index % count
        data = Path(path).read_bytes()
        with open(files[number], "ab") as shard:
            columns.append((number, shard.tell(), shard.write(data)))
    ranges = ByteRanges(files, *zip(*columns, strict=True))
    targets = [target for _, target in folder.samples]
    return EncodedImages(ranges, targets, transform=folder.transform)


def epoch(loader: DataLoader[Any]) -> tuple[float, float]:
    """Returns samples a second and CPU seconds per 1,000 samples of an epoch."""
    before, start = read_cpu(), time.perf_counter()
    samples = sum(len(batch[1]) for batch in loader)
    seconds = time.perf_counter() - start
    return samples / seconds, 1000 * sum(cpu_between(before, read_cpu())) / samples


def main() -> None:
    options = parser_of(__doc__, rounds=9).parse_args()
    setting, corpus = setting_of(options, "default")
    if setting.root is None:
        raise SystemExit("shards: no images")
    folder = pil_dataset(setting.root, "default")
    with tempfile.TemporaryDirectory(dir=setting.root.parent) as made:
        one, many = (shards_of(folder, Path(made), count) for count in (ONE, MANY))
        kinds: dict[str, tuple[type[DataLoader[Any]], AnyDataset]] = {
            "folder": (FusionLoader, folder),
            "one shard": (FusionLoader, one),
            f"{MANY} shards": (FusionLoader, many),
            "one shard, torch": (DataLoader, one),
        }
        loaders = {
            name: kind(
                dataset,
                setting.batch_size,
                shuffle=True,
                num_workers=setting.workers,
                persistent_workers=True,
            )
            for name, (kind, dataset) in kinds.items()
        }
        for loader in loaders.values():
            epoch(loader)
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in loaders}
        with Progress("shards", options.rounds) as progress:
            for _ in range(options.rounds):
                for name, loader in loaders.items():
                    found[name].append(epoch(loader))
                progress.advance()
        for loader in loaders.values():
            close_loader(loader)
    rows, ratios = [], {}
    for name, epochs in found.items():
        rounds = list(zip(epochs, found["folder"], strict=True))
        ratios[name] = [[ours[kind] / theirs[kind] for ours, theirs in rounds] for kind in (0, 1)]
        rates, cpu = zip(*epochs, strict=True)
        rows.append(
            (
                name,
                f"{median(rates):.0f}",
                f"{median(ratios[name][0]):.3f}",
                f"{median(cpu):.3f}",
                f"{median(ratios[name][1]):.3f}",
            )
        )
    header = ("source", "images/s", "rate ÷ folder", "CPU s per 1,000", "CPU ÷ folder")
    publish(options, header, rows, epochs=found, ratios=ratios, corpus=corpus)


if __name__ == "__main__":
    main()

"""How much faster are datasets that people bring? torch's loader, ours, and ours without deferring.

Every workload's first samples are compared bit by bit with and without deferred images, in the
same run; ``--exact 0`` leaves that out.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset

from benchmarks.study import compare, parser_of, publish
from benchmarks.user_datasets import DATASETS, FOLDERS, TENSORS, first_samples
from fusionloader import FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.contenders import ORDER_SEED, batch_length, close_loader
from fusionloader.cli.measure.protocol import Contender, Running
from fusionloader.cli.measure.report import announce
from fusionloader.data.deferred.scope import deferring

# torchvision's GaussianBlur is torch's convolution, whose rounding depends on the processor.
_BLURRED = {"simclr", "dino", "image-folder-simclr"}


def is_same(one: Any, other: Any, slack: float) -> bool:
    """Whether two samples are equal; with ``slack``, values may differ by as much."""
    if isinstance(one, (torch.Tensor, np.ndarray)):
        one, other = torch.as_tensor(one), torch.as_tensor(other)
        return one.shape == other.shape and bool(((one - other).abs() <= slack).all())
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[k], other[k], slack) for k in one)
    if isinstance(one, (list, tuple)):
        pairs = zip(one, other, strict=True)
        return len(one) == len(other) and all(is_same(a, b, slack) for a, b in pairs)
    return bool(one == other)


def assert_exact(name: str, dataset: Any, count: int) -> None:
    """Compares samples of a dataset with and without deferred images."""
    slack = 1.01 / 255 / 0.2 if name in _BLURRED else 0.0
    expected = list(first_samples(dataset, count))
    with deferring(tensors=name in TENSORS):
        found = list(first_samples(dataset, count))
    for index, pair in enumerate(zip(expected, found, strict=True)):
        if not is_same(*pair, slack):
            raise AssertionError(f"{name}: sample {index} is not what Pillow makes of it")


def contender(name: str, kind: Any, dataset: Any, options: Any, **more: Any) -> Contender:
    """Returns a loader over a dataset as a contender."""
    stream = isinstance(dataset, IterableDataset)

    def start() -> Running:
        loader = kind(
            dataset,
            options.batch_size,
            shuffle=None if stream else True,
            num_workers=options.workers,
            persistent_workers=True,
            collate_fn=getattr(dataset, "collate_fn", None),
            generator=torch.Generator().manual_seed(ORDER_SEED),
            **more,
        )
        return Running(lambda: map(batch_length, loader), lambda: close_loader(loader))

    return Contender(name, name, start)


def deferral_row(name: str, told: list[dict[str, Any]]) -> tuple[str, ...]:
    """Returns the row of a workload: torch's loader, without deferred images, and with these."""
    return (
        name,
        f"{told[0]['samples_per_second']:,.0f}",
        f"{told[1]['ratio']:.2f}",
        f"{told[2]['ratio']:.2f}",
        *(f"{each['cpu_seconds_per_1000'] * 1000:,.0f}" for each in told),
    )


def main() -> None:
    parser = parser_of(__doc__.splitlines()[0] if __doc__ else None, rounds=5)
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of workloads")
    parser.add_argument("--exact", type=int, default=64, help="samples to compare (64)")
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    paths = sorted(str(path) for path in setting.folder().glob("*/*") if path.is_file())
    Image.init()
    torch.set_num_threads(1)  # as in workers, for the samples that are compared
    rows, figures = [], {}
    with TemporaryDirectory() as root:
        for name in options.only or DATASETS:
            folder = setting.folder() if name in FOLDERS else Path(root, name)
            folder.mkdir(exist_ok=True)
            dataset = DATASETS[name](paths, folder)
            assert_exact(name, dataset, min(options.exact, len(paths)))
            torchs = contender("torch", DataLoader, dataset, options)
            off = contender("off", FusionLoader, dataset, options, deferred_images="off")
            how = "tensors" if name in TENSORS else "auto"
            ours = contender("fusionloader", FusionLoader, dataset, options, deferred_images=how)
            announce(f"---- {name}")
            figures[name] = compare([torchs, off, ours], options)
            rows.append(deferral_row(name, figures[name]))
    header = ("workload", "torch /s", "off x", "x", "torch us", "off us", "us")
    publish(options, header, rows, workloads=figures, corpus=corpus, exact=options.exact)


if __name__ == "__main__":
    main()

"""How much faster are WebDataset pipelines? torch's loader, ours, and ours without deferring.

Every pipeline's first batches are compared bit by bit with torch's, in the same run.
"""

from __future__ import annotations

import io
import random
import warnings
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, default_collate, get_worker_info
from torchvision import transforms

from benchmarks.breadth import deferral_row, is_same
from benchmarks.study import compare, parser_of, publish
from fusionloader import FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.contenders import ORDER_SEED, close_loader
from fusionloader.cli.measure.protocol import Contender, Running
from fusionloader.cli.measure.report import announce
from fusionloader.cli.measure.workloads import MEAN, SIDE, STD

_END = [transforms.ToTensor(), transforms.Normalize(MEAN, STD)]
_TRAIN = transforms.Compose(
    [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), *_END]
)
_OF_TENSOR = transforms.Compose(
    [
        transforms.RandomResizedCrop(SIDE, antialias=True),
        transforms.RandomHorizontalFlip(),
        transforms.Normalize(MEAN, STD),
    ]
)
_COMPARED = 3  # batches


def _begun(shards: list[str]) -> Any:
    import webdataset

    return webdataset.WebDataset(shards, shardshuffle=False)


def _tuples(shards: list[str]) -> Any:
    return _begun(shards).decode("pil").to_tuple("jpg", "cls").map_tuple(_TRAIN)


def _dicts(shards: list[str]) -> Any:
    renamed = _begun(shards).shuffle(100, seed=1).decode("pil").rename(image="jpg", label="cls")
    return renamed.map_dict(image=_TRAIN)


def _tensors(shards: list[str]) -> Any:
    return _begun(shards).decode("torchrgb").to_tuple("jpg", "cls").map_tuple(_OF_TENSOR)


class _Contents(IterableDataset[Any]):
    """Encoded images in memory, opened by user code."""

    def __init__(self, shards: list[str]) -> None:
        samples = _begun(shards).to_tuple("jpg", "cls")
        self.contents = [(content, int(label)) for content, label in samples]

    def __iter__(self) -> Iterator[Any]:
        """As torch's documentation splits a stream among workers."""
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for content, label in self.contents[first::step]:
            yield {"image": _TRAIN(Image.open(io.BytesIO(content)).convert("RGB")), "label": label}


# A function of shards and a batch size, and whether it makes the batches itself.
PIPELINES: dict[str, tuple[Callable[[list[str], int], Any], bool]] = {
    "to_tuple": (lambda shards, size: _tuples(shards), False),
    "batched": (lambda shards, size: _tuples(shards).batched(size), True),
    "batched by torch": (
        lambda shards, size: _tuples(shards).batched(size, collation_fn=default_collate),
        True,
    ),
    "dicts": (lambda shards, size: _dicts(shards), False),
    "torchrgb": (lambda shards, size: _tensors(shards), False),
    "iterable": (lambda shards, size: _Contents(shards), False),
}


def _write_shards(paths: list[str], folder: Path, shards: int) -> list[str]:
    import webdataset

    written = []
    for shard in range(shards):
        written.append(str(folder / f"{shard:06}.tar"))
        with webdataset.TarWriter(written[-1]) as writer:
            for number, path in enumerate(paths[shard::shards]):
                key = f"{shard:03}-{number:06}"
                writer.write({"__key__": key, "jpg": Path(path).read_bytes(), "cls": number % 100})
    return written


def _length(batch: Any) -> int:
    first = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return len(first)


def _loader(kind: Any, dataset: Any, batch_size: int | None, options: Any, **more: Any) -> Any:
    generator = torch.Generator().manual_seed(ORDER_SEED)
    common = {"num_workers": options.workers, "persistent_workers": True, "generator": generator}
    return kind(dataset, batch_size, **common, **more)


def _contender(name: str, make: Callable[[], Any]) -> Contender:
    def start() -> Running:
        loader = make()
        return Running(lambda: map(_length, loader), lambda: close_loader(loader))

    return Contender(name, name, start)


def _assert_exact(name: str, loaders: list[Any]) -> None:
    seen = []
    for loader in loaders:
        random.seed(1), torch.manual_seed(1)
        seen.append(list(islice(loader, _COMPARED)))
        close_loader(loader)
    for expected, found in zip(*seen, strict=True):
        if not is_same(expected, found, 0.0):
            raise AssertionError(f"{name}: a batch is not torch's")


def main() -> None:
    parser = parser_of(__doc__.splitlines()[0] if __doc__ else None, rounds=5)
    parser.add_argument("--only", type=lambda text: text.split(","), help="names of pipelines")
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    paths = sorted(str(path) for path in setting.folder().glob("*/*") if path.is_file())
    warnings.filterwarnings("ignore", category=UserWarning)
    rows, figures = [], {}
    with TemporaryDirectory() as root:
        shards = _write_shards(paths, Path(root), 4 * max(1, options.workers))
        for name in options.only or PIPELINES:
            make, makes_batches = PIPELINES[name]
            dataset = make(shards, options.batch_size)
            size = None if makes_batches else options.batch_size
            given = (dataset, size, options)
            _assert_exact(name, [_loader(kind, *given) for kind in (DataLoader, FusionLoader)])
            contenders = [
                _contender("torch", lambda given=given: _loader(DataLoader, *given)),
                _contender(
                    "off", lambda given=given: _loader(FusionLoader, *given, deferred_images="off")
                ),
                _contender("fusionloader", lambda given=given: _loader(FusionLoader, *given)),
            ]
            announce(f"---- {name}")
            figures[name] = compare(contenders, options)
            rows.append(deferral_row(name, figures[name]))
    header = ("pipeline", "torch /s", "off x", "x", "torch us", "off us", "us")
    publish(options, header, rows, pipelines=figures, corpus=corpus)


if __name__ == "__main__":
    main()

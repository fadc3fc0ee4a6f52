"""The tables of will_it_be_fast.md, from the files of measurements.

Run from the root of the repository: ``python -m docs.speed_tables`` writes them into the page,
between ``<!-- measured: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.figures import unrecorded

PAGE = Path(__file__).parent / "start/will_it_be_fast.md"
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "cpu"
Row = list[str]

FOLDERS = {
    "default": "0.2 megapixels; crop, flip, normalize",
    "randaugment": "the same with `RandAugment`",
    "openimages-default": "0.75 megapixels; crop, flip, normalize",
    "openimages-randaugment": "the same with `RandAugment`",
    "autoaugment": "0.2 megapixels with `AutoAugment`",
    "trivial": "0.2 megapixels with `TrivialAugmentWide`",
    "randaugment-full": "0.2 megapixels, `RandAugment` on the whole image, before the crop",
}
USER_CODE = {
    "own": "`Image.open`, one random crop",
    "dict": "the same, as a dict with the path",
    "evaluation": "evaluation: resize, center crop",
    "progressive": "progressive JPEGs, one random crop",
    "simclr": "two crops of an image (SimCLR)",
    "dino": "ten crops of an image (DINO)",
    "v2": "torchvision v2",
    "boxes": "torchvision v2 with boxes",
    "letterbox": "pasted on a square canvas, resized",
    "fit": "`ImageOps.fit`, gamma",
    "thumbnail": "`thumbnail`, center crop",
    "timm": "timm's transforms",
    "hugging-face": "Hugging Face `with_transform`",
    "webdataset": 'WebDataset `decode("pil")`',
    "png": "PNG files, one random crop",
    "opencv": "`cv2.imread`, arrays",
    "array": "Pillow, then arrays, as for albumentations",
    "webp": "WebP files, one random crop",
}
WHOLE_BATCHES = {
    "text": "32 texts of varying length, padded",
    "detection": "16 images with boxes, as lists of tensors",
    "tabular": "16 rows of numbers",
    "images": "32 images of 3x160x160, stacked",
    "strings": "16 strings of 64 KB",
}
WITHOUT_FILES = {
    "mnist": "torchvision's `MNIST`, as it is",
    "handmade": "the same pixels by a `__getitem__` of yours",
    "tiny": "ready-made tensors of 3x32x32",
    "tabular": "dicts of numbers and vectors",
}


def main() -> None:
    """Writes the tables into the page."""
    PAGE.write_text(written(PAGE.read_text()))


def written(page: str) -> str:
    """Returns the page with the tables of today's files."""

    def table(found: re.Match[str]) -> str:
        return f"{found[1]}\n{_markdown(TABLES[found[2]]())}{found[3]}"

    return re.sub(r"(<!-- measured: (\w+) -->)\n.*?(<!-- end -->)", table, page, flags=re.DOTALL)


def folders() -> Iterator[Row]:
    """Yields image folders: rates of DataLoader, and how many times as fast the others are."""
    yield ["images and transforms", "`DataLoader`, images/s", "FusionLoader", *_EXTRAS, "file"]
    for name, words in FOLDERS.items():
        found = {each["name"]: each for each in _study(name)["contenders"]}
        rate = f"{found['torch-pil']['samples_per_second']:.0f}"
        extras = [_times(found.get(extra, {}).get("ratio")) for extra in _EXTRAS.values()]
        yield [words, rate, f"**{_times(found['fusionloader']['ratio'])}**", *extras, _link(name)]


_EXTRAS = {"with `jpeg_index`": "fusionloader-index", "with `DecodedCache`": "fusionloader-cache"}


def user_code() -> Iterator[Row]:
    """Yields datasets whose Python code runs in workers, as it is."""
    yield ["dataset", "`DataLoader`, samples/s", "FusionLoader", "processor time", "AVX2 alone"]
    rows, older = (
        {row["workload"]: row for row in _study(name)["table"]}
        for name in ("breadth", "breadth-avx2")
    )
    for name, words in USER_CODE.items():
        row = rows[name]
        spared = _number(row["torch us"]) / _number(row["us"])
        with_avx2 = _times(_number(older[name]["x"])) if name in older else ""
        times = f"**{_times(_number(row['x']))}**"
        yield [words, row["torch /s"], times, f"1/{spared:.1f}", with_avx2]


def whole_batches() -> Iterator[Row]:
    """Yields batches of a ``collate_fn`` of one's own, whose samples take next to nothing."""
    yield ["batches", "`DataLoader`, us of processor time", "FusionLoader", "times as fast"]
    rows = {row["kind"]: row for row in _study("whole_batches")["table"]}
    for name, words in WHOLE_BATCHES.items():
        row = rows[name]
        times = f"**{_times(_number(row['x']))}**"
        yield [words, row["torch us/batch"], row["us/batch"], times]


def shards() -> Iterator[Row]:
    """Yields shards and streams, each with what it is compared to."""
    yield ["source", "compared with", "times", "file"]
    rows = {row["read by"]: _number(row["x"]) for row in _study("hugging_face")["table"]}
    datasets = "the same rows by `DataLoader`", _link("hugging_face")
    for name, words in {
        "from_hugging_face": "`from_hugging_face(rows, transform)`",
        "datasets + fusionloader": "`rows.with_transform(...)`, unchanged",
    }.items():
        yield [words, datasets[0], f"**{_times(rows[name])}**", datasets[1]]
    tars = {row["read from"]: _number(row["x folder"]) for row in _study("tar_folder")["table"]}
    against = tars["TarFolder"] / tars["webdataset + torch"]
    yield [
        *("`TarFolder`", "`webdataset` and `DataLoader`", f"**{_times(against)}**"),
        _link("tar_folder"),
    ]
    for row in _study("webdataset_pipelines")["table"]:
        if row["pipeline"] in ("to_tuple", "torchrgb"):
            how = {"to_tuple": '`decode("pil")`', "torchrgb": '`decode("torchrgb")`'}
            yield [
                f"a WebDataset pipeline with {how[row['pipeline']]}, unchanged",
                *("the same by `DataLoader`", f"**{_times(_number(row['x']))}**"),
                _link("webdataset_pipelines"),
            ]
    stream = {row["shards"]: row for row in _study("streams")["table"]}["stream"]
    yield [
        *("`TarStream`, from a server that answers after 50 ms", "local files", stream["of local"]),
        _link("streams"),
    ]


def without_files() -> Iterator[Row]:
    """Yields samples that are in memory."""
    yield ["samples", "`DataLoader`, samples/s", "FusionLoader", "file"]
    for name, words in WITHOUT_FILES.items():
        found = {each["name"]: each for each in _study(name)["contenders"]}
        rate = f"{found['torch']['samples_per_second']:,.0f}"
        yield [words, rate, f"**{_times(found['fusionloader']['ratio'])}**", _link(name)]


def small_samples() -> Iterator[Row]:
    """Yields tensors and small samples, by the size of a batch."""
    sizes = ("1", "8", "64", "256", "1024")
    yield ["dataset", "`num_workers`", *(f"batch {int(size):,}" for size in sizes)]
    for row in _study("small_samples")["table"]:
        if row["samples"] == "4,096":
            times = (_times(_number(row[size])) for size in sizes)
            yield [row["dataset"], row["workers"], *times]


TABLES: dict[str, Callable[[], Iterator[Row]]] = {
    "folders": folders,
    "user_code": user_code,
    "whole_batches": whole_batches,
    "shards": shards,
    "without_files": without_files,
    "small_samples": small_samples,
}


def _study(name: str) -> dict[str, Any]:
    study: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return study


def _number(text: str) -> float:
    return float(text.replace(",", ""))


def _times(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{ratio:.3g}x" if ratio >= 10 else f"{ratio:.1f}x"


def _link(name: str) -> str:
    known = "" if not unrecorded(_study(name)) else ", code not on record"
    return f"[{name}](../../benchmarks/results/cpu/{name}.json){known}"


def _markdown(rows: Iterator[Row]) -> str:
    heads, *lines = rows
    # Columns of figures are aligned to the right; the first one is of words.
    rule = ["---:" if cell.lstrip("*")[:1].isdigit() else "---" for cell in lines[0]]
    rule[0] = "---"
    return "".join(f"| {' | '.join(line)} |\n" for line in [heads, rule, *lines])


if __name__ == "__main__":
    main()

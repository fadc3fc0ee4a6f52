"""A user's program with the other public modules, checked as typed_user.py is."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from typing_extensions import assert_type

from fusionloader import FusionLoader
from fusionloader.addons.inference import BadImage, Preprocessor, PreprocessorStats
from fusionloader.addons.validation import OverlappedValidation, Total, ValidationResult, validate
from fusionloader.data.sources import (
    EncodedImages,
    ParquetImages,
    StreamSampler,
    TarFolder,
    TarStream,
    from_hugging_face,
)
from fusionloader.observe.trace import Timeline, Trace, merge_traces, read_timeline
from fusionloader.transforms.io import decode_jpeg, decode_window, encoded_size


def shards(transform: Any, rows: Any) -> None:
    dataset = TarFolder(["a.tar", "b.tar"], image="jpg", transform=transform)
    assert_type(dataset, TarFolder)
    assert_type(len(dataset), int)
    assert_type(dataset.classes, list[str] | None)
    assert_type(from_hugging_face(rows, transform), EncodedImages)
    FusionLoader(dataset, 8, shuffle=True)
    ParquetImages("rows.parquet", image=3)  # type: ignore[arg-type]
    stream = TarStream("s3://bucket/{000..099}.tar", read_ahead="1GiB")
    assert_type(stream.sampler(seed=1), StreamSampler)
    FusionLoader(stream, 8, sampler=stream.sampler(seed=1))


def traces(loader: FusionLoader[Any], folder: Path) -> None:
    with loader.trace(folder / "run.json.gz", steps=50) as trace:
        assert_type(trace, Trace)
    timeline = read_timeline(folder / "run.json.gz")
    assert_type(timeline, Timeline)
    assert_type(sum(step.wait_ns for step in timeline.steps), int)
    assert_type(merge_traces([folder / "a.json"], folder / "b.json"), dict[str, int])
    loader.trace(50)  # type: ignore[arg-type]


def decoding(encoded: bytes) -> None:
    assert_type(decode_jpeg(encoded), npt.NDArray[np.uint8])
    assert_type(decode_jpeg(encoded, tensor=True), torch.Tensor)
    assert_type(decode_window(encoded, (0, 0, 8, 8), tensor=True), torch.Tensor)
    assert_type(encoded_size(encoded), tuple[int, int])
    decode_jpeg("image.jpg")  # type: ignore[call-overload]


async def inference(transform: Any, image: bytes) -> None:
    with Preprocessor(transform, num_workers=4, max_delay="5ms") as preprocessor:
        assert_type(preprocessor, Preprocessor)
        assert_type(preprocessor([image, image]), torch.Tensor)
        assert_type(preprocessor.submit(image), Future[Any])
        try:
            await preprocessor.asubmit(image)
        except BadImage as error:
            assert_type(error.place, int | None)
        assert_type(preprocessor.stats(), PreprocessorStats)
    Preprocessor(transform, when_full="drop")  # type: ignore[arg-type]


def accuracy(model: torch.nn.Module, batches: Any) -> dict[str, Any]:
    raise NotImplementedError


def validation(model: torch.nn.Module, loader: FusionLoader[Any]) -> Iterator[ValidationResult]:
    assert_type(validate(accuracy, model, loader), ValidationResult)
    with OverlappedValidation(accuracy, loader, parts=2) as runs:
        assert_type(runs.start(model, epoch=0), bool)
        yield from runs.results()
        assert_type(runs.finish(), list[ValidationResult])
    OverlappedValidation(accuracy, loader, when_busy="later")  # type: ignore[arg-type]


def totals(total: Total) -> None:
    assert_type(total.sum, torch.Tensor)

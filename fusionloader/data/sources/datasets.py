"""Compiles datasets: image folders, byte ranges, images in memory, ``read_encoded`` datasets."""

from __future__ import annotations

import bisect
import dataclasses
import os
import pickle
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch.utils.data import ConcatDataset, Subset

from fusionloader.cache.range_reading import open_file
from fusionloader.data.sources.arrays import PixelArrays, pixel_arrays
from fusionloader.data.sources.encoded_images import EncodedImages
from fusionloader.data.sources.sample_names import SubsetNames
from fusionloader.transforms.executors.native import MOST_ENCODED_BYTES
from fusionloader.transforms.plan.arguments import Transform
from fusionloader.transforms.plan.parts import PASSES, PYTHON, READ
from fusionloader.transforms.plan.patches import is_defined_by
from fusionloader.transforms.plan.stages import Decode, ImageKind, Plan
from fusionloader.transforms.plan.transforms import (
    DECODING,
    CompiledTransform,
    Note,
    Tail,
    compile_transform,
    explain,
)

Kind = Literal["folder", "ranges", "pixels", "encoded", "none"]


@dataclass(frozen=True, slots=True)
class Compiled:
    """The compiled part of a dataset.

    Attributes:
        kind: source of the images: ``"folder"``: files in ``samples``; ``"ranges"``: ranges of
            files or URLs, see ``ranged``; ``"pixels"``: images in memory, see ``arrays``;
            ``"encoded"``: the dataset's ``read_encoded(index)``; ``"none"``: nothing is compiled.
        plan: native stages for the bytes or pixels; ``None`` for ``"none"``.
        tail: Python code that follows on the PIL image, if any.
        target_transform: Python code for the target, if any.
        notes: lines of ``explain()``.
        is_remote: whether the ranges are at URLs.
    """

    kind: Kind
    plan: Plan | None
    tail: Tail | None
    target_transform: Transform | None
    notes: tuple[Note, ...]
    is_remote: bool = False

    @property
    def complete(self) -> bool:
        """Whether the native stages alone make the samples, all of one shape."""
        plan = self.plan
        if plan is None or plan.convert is None or plan.height is None or plan.width is None:
            return False
        return self.tail is None and self.target_transform is None

    def explain(self, part_seconds: Sequence[float] = ()) -> str:
        """Returns one line per stage: native, or Python with the reason.

        Args:
            part_seconds: seconds by ``Note.part``, for the stages' shares of the time.
        """
        return explain(self.notes, part_seconds)

    def samples(self, dataset: Any) -> list[tuple[str, int]]:
        """Returns (path, target) of each sample of a ``"folder"`` dataset."""
        if type(dataset) is Subset:
            inner = self.samples(dataset.dataset)
            return [inner[index] for index in dataset.indices]
        if type(dataset) is ConcatDataset:
            return [sample for part in dataset.datasets for sample in self.samples(part)]
        return dataset.samples  # type: ignore[no-any-return]

    def ranged(self, dataset: Any) -> tuple[EncodedImages, npt.NDArray[np.int64] | None]:
        """Returns the dataset of ``"ranges"`` and the indices into it; ``None`` for all."""
        if type(dataset) is not Subset:
            return dataset, None
        images, outer = self.ranged(dataset.dataset)
        indices = np.asarray(dataset.indices, dtype=np.int64)
        return images, indices if outer is None else outer[indices]

    def sample_names(self, dataset: Any) -> bytes:
        """Returns the pickled ``SampleNames`` of ``"ranges"``, otherwise ``b""``."""
        if self.kind != "ranges":
            return b""
        images, indices = self.ranged(dataset)
        if indices is None:
            return pickle.dumps(images.names)
        return pickle.dumps(SubsetNames(images.names, array("q", indices.tobytes())))

    def arrays(self, dataset: object) -> PixelArrays:
        """Returns the images and targets of a ``"pixels"`` dataset.

        Raises:
            ValueError: the dataset was changed.
        """
        if type(dataset) is Subset:
            return self.arrays(dataset.dataset).at(dataset.indices)
        found = pixel_arrays(dataset)
        if isinstance(found, str):
            raise ValueError(
                f"{type(dataset).__name__} has changed since the loader saw it: {found}"
            )
        return found

    def read(self, dataset: Any, index: Any) -> tuple[bytes | npt.NDArray[np.uint8], Any]:
        """Returns the encoded bytes and the target of a sample, except for ``"pixels"``.

        A file that is too large for native decoders is returned as pixels, decoded by Pillow.
        """
        dataset, index = _find_inner(dataset, index)
        if self.kind in ("encoded", "ranges"):
            return dataset.read_encoded(index)  # type: ignore[no-any-return]
        path, target = dataset.samples[index]
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size <= MOST_ENCODED_BYTES:
                return file.read(), target
            with Image.open(file) as image:
                return np.asarray(image.convert("RGB")), target

    def name(self, dataset: Any, index: Any) -> str:
        """Returns a sample's name for messages: ``index 5 (cats/5.jpg)``."""
        try:
            dataset, inner = _find_inner(dataset, index)
        except (IndexError, TypeError):
            return f"index {index!r}"
        if self.kind not in ("folder", "ranges"):
            return f"index {index!r}"
        try:
            name = dataset.name(inner) if self.kind == "ranges" else dataset.samples[inner][0]
            return f"index {index} ({name})"
        except (IndexError, TypeError):
            return f"index {index!r}"


def compile_dataset(dataset: object, decode: Decode = "exact", strict: bool = True) -> Compiled:
    """Compiles a dataset and its transforms.

    These can be compiled: ``torchvision.datasets.ImageFolder``, ``DatasetFolder`` and ``ImageNet``
    with the default loader and ``__getitem__``; ``EncodedImages``; ``MNIST``, ``CIFAR10``, ``SVHN``
    and similar; any dataset with an attribute ``transform`` and a method ``read_encoded(index)``
    that returns ``(bytes, target)``; ``Subset`` of these; and ``ConcatDataset`` of image folders
    with the same transforms. ``decode`` and ``strict`` are those of the plan.
    """
    parts = find_parts(dataset)
    inner = parts[0]
    kind, images, why = _kind(inner)
    if len(parts) > 1 and not why:
        why = next(filter(None, (_why_not_joined(inner, part) for part in parts)), "")
        kind = "none" if why else kind
    if kind == "none":
        return _nothing(type(dataset).__name__, why)
    transform = getattr(inner, "transform", None)
    if transform is None:
        return _nothing(
            type(dataset).__name__, "it has no transform, so that its samples are images"
        )
    compiled: CompiledTransform = compile_transform(transform, decode, images)
    if compiled.plan.convert is None and compiled.tail is None:
        return _nothing(type(dataset).__name__, "its transforms do not end in a tensor")
    target_transform = getattr(inner, "target_transform", None)
    notes = (*_source_notes(kind, inner), *compiled.notes)
    if target_transform is not None:
        notes = (*notes, Note("target_transform", "user code", part=PYTHON))
    plan = dataclasses.replace(compiled.plan, strict=strict)
    is_remote = kind == "ranges" and inner.byte_ranges().are_remote
    return Compiled(kind, plan, compiled.tail, target_transform, notes, is_remote)


def find_parts(dataset: Any) -> list[Any]:
    """Returns the datasets that ``Subset`` and ``ConcatDataset`` are made of, to any depth."""
    if type(dataset) is Subset:
        return find_parts(dataset.dataset)
    if type(dataset) is ConcatDataset and _is_torchs_own(dataset):
        parts = {id(part): part for each in dataset.datasets for part in find_parts(each)}
        return list(parts.values())
    return [dataset]


def _is_torchs_own(dataset: Any) -> bool:
    getitem = type(dataset).__getitem__
    return is_defined_by(getitem, ConcatDataset) and not hasattr(dataset, "__getitems__")


def _find_inner(dataset: Any, index: Any) -> tuple[Any, Any]:
    """Returns the dataset that has a sample, below ``Subset`` and ``ConcatDataset``, and its index.

    Raises:
        IndexError, TypeError: there is no such index.
    """
    while True:
        if type(dataset) is Subset:
            dataset, index = dataset.dataset, dataset.indices[index]
        elif type(dataset) is ConcatDataset:
            ends = dataset.cumulative_sizes
            if not -ends[-1] <= index < ends[-1]:
                raise IndexError(f"index {index} of {ends[-1]} samples")
            index %= ends[-1]
            part = bisect.bisect_right(ends, index)
            dataset, index = dataset.datasets[part], index - (ends[part - 1] if part else 0)
        else:
            return dataset, index


def _why_not_joined(first: Any, part: Any) -> str:
    """Returns why a part of a ``ConcatDataset`` does not run by the plan of the first one."""
    kind, _, why = _kind(part)
    if kind != "folder":
        return why or "of the parts of a ConcatDataset, image folders are compiled"
    for name in ("transform", "target_transform"):
        if getattr(part, name, None) is not getattr(first, name, None):
            return f"its parts have other objects as {name}: give all of them the same"
    return ""


def _nothing(stage: str, why: str) -> Compiled:
    return Compiled("none", None, None, None, (Note(stage, why),))


def _source_notes(kind: Kind, dataset: Any) -> tuple[Note, ...]:
    name = type(dataset).__name__
    if kind == "pixels":
        return (Note(f"{name}: images in memory", "", part=PASSES),)
    read = f"{name}: {f'read {dataset.describe()}' if kind == 'ranges' else 'read'}"
    why = "by its read_encoded()" if kind == "encoded" else ""
    return Note(read, why, part=READ), Note(DECODING, "", part=PASSES)


def _kind(dataset: object) -> tuple[Kind, ImageKind, str]:
    """Returns the kind, the known properties of the images, and why nothing can be compiled."""
    try:
        from torchvision.datasets import folder
    except ImportError:
        return "none", ImageKind(), "torchvision is not installed"
    if isinstance(dataset, EncodedImages) and _reads_ranges(type(dataset)):
        return "ranges", ImageKind(), ""
    why = _why_not_encoded(type(dataset))
    if why is not None:
        return ("none" if why else "encoded"), ImageKind(), why
    if isinstance(dataset, folder.DatasetFolder):
        why = _why_no_folder(dataset)
        return ("none" if why else "folder"), ImageKind(), why
    arrays = pixel_arrays(dataset)
    if isinstance(arrays, str):
        return "none", ImageKind(), arrays
    _, height, width, channels = arrays.images.shape
    return "pixels", ImageKind(channels, height, width), ""


def _why_not_encoded(kind: type) -> str | None:
    """Returns ``None`` without ``read_encoded``, else why it cannot be used; empty if it can."""
    owners = [base for base in kind.__mro__ if "read_encoded" in vars(base)]
    if not owners:
        return None
    indexed = next((base for base in kind.__mro__ if "__getitem__" in vars(base)), None)
    if indexed not in (None, owners[0]) and issubclass(indexed, owners[0]):
        return "its class has a custom __getitem__"
    return ""


def _reads_ranges(kind: type[EncodedImages]) -> bool:
    """Whether samples are read by the base class's own methods."""
    names = ("__getitem__", "read_encoded", "byte_ranges")
    same = all(getattr(kind, name) is getattr(EncodedImages, name) for name in names)
    return same and not callable(getattr(kind, "__getitems__", None))


def _why_no_folder(dataset: Any) -> str:
    from torchvision import get_image_backend
    from torchvision.datasets import folder

    getitem = type(dataset).__getitem__
    if getitem is not folder.DatasetFolder.__getitem__ or not is_defined_by(getitem, folder):
        return "its class has a custom __getitem__"
    if callable(getattr(dataset, "__getitems__", None)):
        return "its class has a custom __getitems__"
    if dataset.loader not in (folder.default_loader, folder.pil_loader):
        return "it has a custom loader"
    if not (is_defined_by(dataset.loader, folder) and is_defined_by(folder.pil_loader, folder)):
        return "torchvision's loader of images was replaced"
    if dataset.loader is folder.default_loader and get_image_backend() != "PIL":
        return f"torchvision's image backend is {get_image_backend()}, not PIL"
    return ""

"""Compiles datasets: image folders, byte ranges, images in memory, ``read_encoded`` datasets."""

from __future__ import annotations

import dataclasses
import inspect
import operator
import os
import pickle
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from types import MemberDescriptorType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import Dataset as TorchDataset

from fusionloader.cache.range_reading import open_file
from fusionloader.data.sources.arrays import UNKNOWN, PixelArrays, pixel_arrays
from fusionloader.data.sources.encoded_images import EncodedImages
from fusionloader.data.sources.fingerprint import attributes
from fusionloader.data.sources.nesting import (
    Transformed,
    cut,
    find_leaf,
    find_leaves,
    inner_dataset,
    leaf_indices,
    list_indices,
    sized_parts,
    without_wrappers,
)
from fusionloader.data.sources.sample_names import SubsetNames
from fusionloader.transforms.executors.native import MOST_ENCODED_BYTES
from fusionloader.transforms.plan.arguments import NotCompiled, Transform
from fusionloader.transforms.plan.compiled_transform import (
    DECODING,
    CompiledTransform,
    Note,
    Tail,
    explain,
)
from fusionloader.transforms.plan.parts import PASSES, PYTHON, READ
from fusionloader.transforms.plan.patches import is_defined_by, why_not_pillow
from fusionloader.transforms.plan.stages import Decode, ImageKind, Plan
from fusionloader.transforms.plan.transforms import compile_transform
from fusionloader.transforms.plan.wrappers import read_sample

Kind = Literal["folder", "ranges", "pixels", "encoded", "parts", "none"]


@dataclass(frozen=True, slots=True)
class Compiled:
    """The compiled part of a dataset.

    Attributes:
        kind: source of the images: ``"folder"``: files in ``samples``; ``"ranges"``: ranges of
            files or URLs, see ``ranged``; ``"pixels"``: images in memory, see ``arrays``;
            ``"encoded"``: the dataset's ``read_encoded(index)``; ``"parts"``: several datasets with
            a plan each; ``"none"``: nothing is compiled.
        images: the dataset without the user's classes that only pass samples on.
        plan: native stages for the bytes or pixels; ``None`` for ``"none"``; of ``"parts"`` that of
            the first one.
        tail: Python code that follows on the PIL image, if any.
        target_transform: Python code for the target, if any.
        notes: lines of ``explain()``.
        is_remote: whether the ranges are at URLs.
        parts: the compiled datasets of ``"parts"``, in the order of ``find_leaves(images)``.
    """

    kind: Kind
    images: Any
    plan: Plan | None
    tail: Tail | None
    target_transform: Transform | None
    notes: tuple[Note, ...]
    is_remote: bool = False
    parts: tuple[Compiled, ...] = ()

    def part_of(self, leaf: Any) -> Compiled:
        """Returns the compiled part that makes the samples of a leaf of ``images``."""
        if not self.parts:
            return self
        leaves = find_leaves(self.images)
        return self.parts[next(i for i, each in enumerate(leaves) if each is leaf)]

    @property
    def has_tail(self) -> bool:
        """Whether Python code of the user follows on images."""
        return self.tail is not None or any(part.has_tail for part in self.parts)

    @property
    def complete(self) -> bool:
        """Whether the native stages of one plan make the samples, all of one shape."""
        plan = self.plan
        if plan is None or plan.convert is None or plan.height is None or plan.width is None:
            return False
        python = self.tail is not None or self.target_transform is not None
        return not self.parts and not python

    def explain(self, part_seconds: Sequence[float] = ()) -> str:
        """Returns one line per stage: native, or Python with the reason.

        Args:
            part_seconds: seconds by ``Note.part``, for the stages' shares of the time.
        """
        if self.parts:  # their stages are counted together
            return "\n".join(part.explain() for part in self.parts)
        return explain(self.notes, part_seconds)

    def samples(self) -> list[tuple[str, int]]:
        """Returns (path, target) of each sample of a ``"folder"`` dataset."""
        return _samples(self.images)

    def ranged(self) -> tuple[EncodedImages, npt.NDArray[np.int64] | None]:
        """Returns the dataset of ``"ranges"`` and the indices into it; ``None`` for all."""
        (leaf,) = find_leaves(self.images)
        return inner_dataset(leaf), leaf_indices(self.images)

    def sample_names(self) -> bytes:
        """Returns the pickled ``SampleNames`` of ``"ranges"``, otherwise ``b""``."""
        if self.kind != "ranges":
            return b""
        images, indices = self.ranged()
        if indices is None:
            return pickle.dumps(images.names)
        return pickle.dumps(SubsetNames(images.names, array("q", indices.tobytes())))

    def arrays(self) -> PixelArrays:
        """Returns the images and targets of a ``"pixels"`` dataset.

        Raises:
            ValueError: the dataset was changed.
        """
        (leaf,) = find_leaves(self.images)
        dataset, indices = inner_dataset(leaf), leaf_indices(self.images)
        found = pixel_arrays(dataset)
        if isinstance(found, str):
            kind = type(dataset).__name__
            raise ValueError(f"{kind} has changed since the loader saw it: {found}")
        return found if indices is None else found.at(indices)

    def read(self, index: Any) -> tuple[bytes | npt.NDArray[np.uint8], Any]:
        """Returns the encoded bytes and the target of a sample, except for ``"pixels"``.

        A file that is too large for native decoders is returned as pixels, decoded by Pillow.
        """
        leaf, index = find_leaf(self.images, index)
        dataset = inner_dataset(leaf)
        if self.kind in ("encoded", "ranges"):
            return dataset.read_encoded(index)  # type: ignore[no-any-return]
        path, target = dataset.samples[index]
        with open_file(path) as file:
            if os.fstat(file.fileno()).st_size <= MOST_ENCODED_BYTES:
                return file.read(), target
            with Image.open(file) as image:
                return np.asarray(image.convert("RGB")), target

    def name(self, index: Any) -> str:
        """Returns a sample's name for messages: ``index 5 (cats/5.jpg)``."""
        try:
            leaf, inner = find_leaf(self.images, index)
            dataset = inner_dataset(leaf)
            kind = self.part_of(leaf).kind
            if kind in ("folder", "ranges"):
                name = dataset.name(inner) if kind == "ranges" else dataset.samples[inner][0]
                return f"index {index} ({name})"
        except (IndexError, TypeError):
            pass
        return f"index {index!r}"


def _samples(images: Any) -> list[tuple[str, int]]:
    if type(images) is Subset:
        inner = _samples(images.dataset)
        return [inner[index] for index in list_indices(images)]
    if type(images) is ConcatDataset:
        return [each for part, size in sized_parts(images) for each in cut(_samples(part), size)]
    samples = inner_dataset(images).samples
    # An array or a pandas.Series that the user has put there would be compared by element.
    return samples if type(samples) is list else [(path, target) for path, target in samples]


def compile_dataset(dataset: object, decode: Decode = "exact", strict: bool = True) -> Compiled:
    """Compiles a dataset and its transforms.

    These can be compiled: ``torchvision.datasets.ImageFolder``, ``DatasetFolder`` and ``ImageNet``
    with the default loader and ``__getitem__``; ``EncodedImages``; ``MNIST``, ``CIFAR10``, ``SVHN``
    and similar; any dataset with an attribute ``transform`` and a method ``read_encoded(index)``
    that returns ``(bytes, target)``; ``Subset`` and ``ConcatDataset`` of these; and datasets of a
    user's class that read a sample of one of these and transform its image. ``decode`` and
    ``strict`` are those of the plan.
    """
    images = without_wrappers(dataset)
    first, *others = find_leaves(images)
    compiled = _compile_leaf(first, decode, strict)
    if not all(_shares_plan(leaf, first) for leaf in others):
        parts = (compiled, *(_compile_leaf(leaf, decode, strict) for leaf in others))
        compiled = next((part for part in parts if part.plan is None), compiled)
        if compiled.plan is not None:
            compiled = dataclasses.replace(compiled, kind="parts", parts=parts, is_remote=False)
    notes = compiled.notes
    if compiled.plan is None:  # named as the user knows the dataset
        notes = (dataclasses.replace(notes[0], stage=type(dataset).__name__),)
    return dataclasses.replace(compiled, images=images, notes=notes)


def _compile_leaf(leaf: Any, decode: Decode, strict: bool) -> Compiled:
    dataset = inner_dataset(leaf)
    kind, images, why = _kind(dataset)
    if why:
        return _nothing(leaf, _advice(dataset) or why)
    steps = _steps(leaf)
    if not steps:
        return _nothing(leaf, "it has no transform, so that its samples are images")
    transform = steps[0] if len(steps) == 1 else Tail(steps)
    compiled: CompiledTransform = compile_transform(transform, decode, images)
    if compiled.plan.convert is None and compiled.tail is None:
        return _nothing(leaf, "its transforms do not end in a tensor")
    target_transform = getattr(dataset, "target_transform", None)
    notes = (*_source_notes(kind, dataset, _name(leaf)), *compiled.notes)
    if target_transform is not None:
        notes = (*notes, Note("target_transform", "user code", part=PYTHON))
    plan = dataclasses.replace(compiled.plan, strict=strict)
    is_remote = kind == "ranges" and dataset.byte_ranges().are_remote
    return Compiled(kind, leaf, plan, compiled.tail, target_transform, notes, is_remote)


def _steps(leaf: Any) -> list[Transform]:
    """Returns the transforms of a leaf's images."""
    own = getattr(inner_dataset(leaf), "transform", None)
    further = leaf.transforms if type(leaf) is Transformed else ()
    return [*([] if own is None else [own]), *further]


def _shares_plan(leaf: Any, first: Any) -> bool:
    """Whether two leaves are image folders with the same transforms."""
    datasets, steps = (inner_dataset(leaf), inner_dataset(first)), (_steps(leaf), _steps(first))
    if not all(_kind(dataset)[0] == "folder" for dataset in datasets):
        return False
    same_target = len({id(getattr(each, "target_transform", None)) for each in datasets}) == 1
    return same_target and len(steps[0]) == len(steps[1]) and all(map(operator.is_, *steps))


def _name(leaf: Any) -> str:
    """Returns the names of a leaf's classes: ``ImageFolder in Transformed``."""
    around = leaf.around if type(leaf) is Transformed else ()
    return " in ".join((type(inner_dataset(leaf)).__name__, *around))


def _advice(dataset: Any) -> str:
    """Returns why a user's class around a known dataset is not taken off; ``""`` for others."""
    values = attributes(dataset).values()
    for held in (value for value in values if issubclass(type(value), TorchDataset)):
        leaf = inner_dataset(find_leaves(without_wrappers(held))[0])
        if _kind(leaf)[0] == "none":
            continue
        try:
            read_sample(dataset)
        except NotCompiled as why:
            instead = f"{type(leaf).__name__}(..., transform=...)"
            if held is not leaf:
                instead = f"{type(held).__name__}({instead}, ...)"
            return f"{why}; native would be {instead}"
    return ""


def _nothing(leaf: Any, why: str) -> Compiled:
    return Compiled("none", leaf, None, None, None, (Note(type(leaf).__name__, why),))


def _source_notes(kind: Kind, dataset: Any, name: str) -> tuple[Note, ...]:
    if kind == "pixels":
        return (Note(f"{name}: images in memory", "", part=PASSES),)
    read = f"{name}: {f'read {dataset.describe()}' if kind == 'ranges' else 'read'}"
    why = "by its read_encoded()" if kind == "encoded" else ""
    return Note(read, why, part=READ), Note(DECODING, "", part=PASSES)


_TRANSFORMS = ("transform", "target_transform")
_OF_TORCHVISION = (*_TRANSFORMS, "samples", "loader", "data", "targets", "labels")


def _kind(dataset: object) -> tuple[Kind, ImageKind, str]:
    """Returns the kind, the known properties of the images, and why nothing can be compiled."""
    kind, images, why = _known_kind(dataset)
    if why:
        return kind, images, why
    for name in _OF_TORCHVISION if kind in ("folder", "pixels") else _TRANSFORMS:
        found = inspect.getattr_static(type(dataset), name, None)
        if hasattr(type(found), "__set__") and type(found) is not MemberDescriptorType:
            return "none", images, f"its class has a property {name}, whose value may change"
    return kind, images, why


def _known_kind(dataset: object) -> tuple[Kind, ImageKind, str]:
    if isinstance(dataset, EncodedImages) and _reads_ranges(type(dataset)):
        return "ranges", ImageKind(), ""
    why = _why_not_encoded(type(dataset))
    if why is not None:
        return ("none" if why else "encoded"), ImageKind(), why
    if "torchvision.datasets" not in sys.modules:  # so it is none of those; loading takes seconds
        return "none", ImageKind(), UNKNOWN
    from torchvision.datasets import folder

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
    return why_not_pillow()

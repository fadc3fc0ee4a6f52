"""Datasets to plans: image folders with torchvision's own loader, and ``read_encoded`` datasets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch.utils.data import Subset

from fusionloader.plan.stages import Plan
from fusionloader.plan.transforms import CompiledTransform, Note, compile_transform


@dataclass(frozen=True, slots=True)
class Compiled:
    """What could be compiled of a dataset.

    Attributes:
        kind: ``"folder"``: files named by ``samples``; ``"encoded"``: ``read_encoded(index)`` gives
            the bytes and the target; ``"none"``: nothing was compiled.
        plan: what is done natively to the encoded bytes; ``None`` for ``"none"``.
        tail: what Python does to the resulting PIL image, if anything.
        target_transform: what Python does to the target, if anything.
        notes: the lines of ``explain()``.
    """

    kind: Literal["folder", "encoded", "none"]
    plan: Plan | None
    tail: Callable[[Any], Any] | None
    target_transform: Callable[[Any], Any] | None
    notes: tuple[Note, ...]

    @property
    def complete(self) -> bool:
        """Whether samples of one shape come out of the native stages and Python adds nothing."""
        plan = self.plan
        if plan is None or plan.convert is None or plan.height is None or plan.width is None:
            return False
        return self.tail is None and self.target_transform is None

    def explain(self) -> str:
        """Returns a line per stage: native, or Python and why."""
        return "\n".join(
            f"{note.stage}: {'python (' + note.why + ')' if note.why else 'native'}"
            for note in self.notes
        )

    def samples(self, dataset: Any) -> list[tuple[str, int]]:
        """Returns (path, target) of a ``"folder"`` dataset's samples, in the order of indices."""
        if isinstance(dataset, Subset):
            inner = self.samples(dataset.dataset)
            return [inner[index] for index in dataset.indices]
        return dataset.samples  # type: ignore[no-any-return]

    def read(self, dataset: Any, index: Any) -> tuple[bytes, Any]:
        """Returns the encoded bytes and the target of a sample."""
        while isinstance(dataset, Subset):
            dataset, index = dataset.dataset, dataset.indices[index]
        if self.kind == "encoded":
            return dataset.read_encoded(index)  # type: ignore[no-any-return]
        path, target = dataset.samples[index]
        with open(path, "rb") as file:
            return file.read(), target

    def name(self, dataset: Any, index: Any) -> str:
        """Returns a sample's name for messages: ``index 5 (cats/5.jpg)``."""
        inner = index
        while isinstance(dataset, Subset):
            dataset, inner = dataset.dataset, dataset.indices[inner]
        if self.kind != "folder":
            return f"index {index!r}"
        try:
            return f"index {index} ({dataset.samples[inner][0]})"
        except (IndexError, TypeError):
            return f"index {index!r}"


def compile_dataset(dataset: Any, decode: Literal["exact", "fast"] = "exact") -> Compiled:
    """Returns what can be compiled of a dataset and its transforms.

    Compiled are ``torchvision.datasets.ImageFolder``, ``DatasetFolder`` and ``ImageNet`` with the
    default loader and their own ``__getitem__``; any dataset with ``read_encoded(index)`` returning
    ``(bytes, target)`` and an attribute ``transform``; and ``Subset`` of these.
    """
    inner = dataset
    while type(inner) is Subset:
        inner = inner.dataset
    kind, why = _kind(inner)
    if kind == "none":
        return _nothing(type(dataset).__name__, why)
    transform = getattr(inner, "transform", None)
    if transform is None:
        return _nothing(
            type(dataset).__name__, "it has no transform, so that its samples are images"
        )
    compiled: CompiledTransform = compile_transform(transform, decode)
    if compiled.plan.convert is None and compiled.tail is None:
        return _nothing(type(dataset).__name__, "its transforms do not end in a tensor")
    target_transform = getattr(inner, "target_transform", None)
    read = Note(f"{type(inner).__name__}: read and decode", "")
    notes = (read, *compiled.notes)
    if target_transform is not None:
        notes = (*notes, Note("target_transform", "user code"))
    return Compiled(kind, compiled.plan, compiled.tail, target_transform, notes)


def _nothing(stage: str, why: str) -> Compiled:
    return Compiled("none", None, None, None, (Note(stage, why),))


def _kind(dataset: Any) -> tuple[Literal["folder", "encoded", "none"], str]:
    try:
        from torchvision import get_image_backend
        from torchvision.datasets import folder
    except ImportError:
        return "none", "torchvision is not installed"
    if callable(getattr(dataset, "read_encoded", None)):
        return "encoded", ""
    if not isinstance(dataset, folder.DatasetFolder):
        return "none", "not an image folder, and without read_encoded(index)"
    if type(dataset).__getitem__ is not folder.DatasetFolder.__getitem__:
        return "none", "its class has a __getitem__ of its own"
    if callable(getattr(dataset, "__getitems__", None)):
        return "none", "its class has a __getitems__ of its own"
    if dataset.loader not in (folder.default_loader, folder.pil_loader):
        return "none", "it has a loader of its own"
    if dataset.loader is folder.default_loader and get_image_backend() != "PIL":
        return "none", f"torchvision's image backend is {get_image_backend()}, not PIL"
    return "folder", ""

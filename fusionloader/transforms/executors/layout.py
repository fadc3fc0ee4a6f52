"""The fixed layout of samples under torch's default collate.

Samples whose leaves all have a constant shape and type are written row by row into shared memory. A
batch is then a structure of tensors over that memory, equal to the result of ``default_collate``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils.data._utils import collate as torch_collate

from fusionloader.transforms.executors.collate import collated_by_torch

# A sample, a result of default_collate, and memory of a batch: a buffer, or a uint8 tensor.
Sample: TypeAlias = Any
Batch: TypeAlias = Any
Memory: TypeAlias = Any

_ALIGN = 64
_SCALARS = {float: torch.float64, int: torch.int64, bool: torch.bool}
# A text's row begins with its length. Paths and captions fit; a sample with a longer text is sent.
TEXT_LENGTH = np.dtype("<u4")
_TEXT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor, array, number or text of a sample, and the row that it is written into.

    ``kind`` is ``"tensor"`` (of class ``tensor``), ``"array"`` (numpy, also 0-d), ``"scalar"``
    (Python or numpy number, of type ``scalar``) or ``"text"`` (of type ``scalar``: str or bytes).
    """

    kind: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    scalar: type | None = None
    tensor: type[torch.Tensor] = torch.Tensor

    @property
    def nbytes(self) -> int:
        """Bytes per row."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Branch:
    """A container; ``keys`` are those of a mapping, ``None`` for a sequence."""

    kind: type[Any]
    keys: tuple[Hashable, ...] | None
    children: tuple[Leaf | Branch, ...]


Node = Leaf | Branch


class _NotFixed(Exception):
    pass


@dataclass(frozen=True, slots=True)
class Layout:
    """The structure of a sample. In a batch, each leaf has one block of rows."""

    root: Node

    @staticmethod
    def of(sample: Sample) -> Layout | str:
        """Returns the layout of samples like this one, or the reason why there is none."""
        try:
            layout = Layout(_node(sample))
        except _NotFixed as why:
            return str(why)
        except Exception as error:  # a class of the user's; collate raises it, where it is reported
            return f"looking at a sample raised {with_article(type(error).__name__)}"
        kinds = {leaf.kind for leaf in layout.leaves}
        if "text" in kinds and not kinds & {"tensor", "array"}:
            return "a sample contains texts and no tensor"
        return layout

    def describe(self) -> str:
        """Returns the structure in words: ``(float32 3 x 32 x 32, int64)``."""
        return _describe(self.root)

    @property
    def leaves(self) -> list[Leaf]:
        """Leaves in the order of their blocks."""
        found: list[Leaf] = []
        _collect(self.root, found)
        return found

    def offsets(self, rows: int) -> list[int]:
        """Returns the byte offset of each leaf's block in a batch of ``rows`` rows."""
        offsets, end = [], 0
        for leaf in self.leaves:
            offsets.append(end)
            end += -(-leaf.nbytes * rows // _ALIGN) * _ALIGN
        return offsets

    def batch_bytes(self, rows: int) -> int:
        return sum(-(-leaf.nbytes * rows // _ALIGN) * _ALIGN for leaf in self.leaves)

    def batch(self, owner: Memory, rows: int, count: int) -> Batch:
        """Returns the first ``count`` of ``rows`` rows as a batch, without copying.

        Args:
            owner: writable buffer; every tensor over it keeps it alive.
            rows: number of rows that the buffer is laid out for.
            count: number of rows of the batch.
        """
        return self.build(self.tensors(owner, rows, count))

    def build(self, tensors: Iterable[torch.Tensor]) -> Batch:
        """Returns the batch whose leaves are ``tensors``."""
        leaves = iter(tensors)
        return _build(self.root, lambda leaf: _as_batch(leaf, next(leaves)))

    def samples(self, owner: Memory, rows: int, positions: Iterable[int]) -> list[Sample]:
        """Returns the samples in the rows ``positions``, as ``default_collate`` takes them."""
        tensors = self.tensors(owner, rows, rows)
        rebuilt = []
        for position in positions:
            rows_of_leaves = iter([tensor[position] for tensor in tensors])
            rebuilt.append(self._sample(rows_of_leaves))
        return rebuilt

    def _sample(self, rows_of_leaves: Iterator[torch.Tensor]) -> Sample:
        return _build(self.root, lambda leaf: _as_leaf(leaf, next(rows_of_leaves)), list_only=False)

    def tensors(self, owner: Memory, rows: int, count: int) -> list[torch.Tensor]:
        """Returns the leaves of a batch; see ``batch``."""
        tensors = []
        for leaf, offset in zip(self.leaves, self.offsets(rows), strict=True):
            shape = (count, *leaf.shape)
            size = leaf.nbytes // leaf.dtype.itemsize * count
            if size == 0:
                tensors.append(torch.empty(shape, dtype=leaf.dtype, device="cpu"))
                continue
            if isinstance(owner, torch.Tensor):
                # ``data`` gives each leaf a version counter of its own for autograd.
                flat = owner[offset : offset + size * leaf.dtype.itemsize].view(leaf.dtype).data
            else:
                flat = torch.frombuffer(owner, dtype=leaf.dtype, count=size, offset=offset)
            tensors.append(flat.view(shape))
        return tensors


def _node(sample: Sample) -> Node:
    kind = type(sample)
    if not collated_by_torch(sample):
        raise _NotFixed(f"{kind.__name__} has a custom collate function")
    if isinstance(sample, torch.Tensor):
        return _tensor_leaf(sample)
    if kind in _SCALARS:
        return Leaf("scalar", (), _SCALARS[kind], kind)
    if kind in (str, bytes):
        return _text_leaf(sample)
    if isinstance(sample, np.ndarray):
        return _array_leaf(sample)
    if isinstance(sample, (np.number, np.bool_)):
        return Leaf("scalar", (), _numpy_dtype(np.dtype(kind)), kind)
    if kind is dict:
        return Branch(dict, tuple(sample), tuple(_node(value) for value in sample.values()))
    if kind in (list, tuple):
        if not sample:
            raise _NotFixed(f"an empty {kind.__name__}")
        return Branch(kind, None, tuple(_node(part) for part in sample))
    if isinstance(sample, tuple) and hasattr(sample, "_fields"):
        return Branch(kind, None, tuple(_node(part) for part in sample))
    raise _NotFixed(f"a sample contains {with_article(kind.__name__)}")


def _tensor_leaf(tensor: torch.Tensor) -> Leaf:
    if not (type(tensor) is torch.Tensor or _is_stacked_as_plain(tensor)):
        raise _NotFixed(f"a sample contains {with_article(type(tensor).__name__)}")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        raise _NotFixed("a sample contains a sparse, quantized or nested tensor")
    if tensor.device.type != "cpu":
        raise _NotFixed(f"a sample contains a tensor on {tensor.device}")
    if tensor.requires_grad:
        raise _NotFixed("a sample contains a tensor that requires grad")
    return Leaf("tensor", tuple(tensor.shape), tensor.dtype, tensor=type(tensor))


def _is_stacked_as_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of torchvision (image, mask), and a batch of such is a plain tensor.

    A batch is plain unless the user calls ``tv_tensors.set_return_type``.
    """
    kind = type(tensor)
    if kind.__module__.partition(".")[0] != "torchvision":
        return False
    collated = torch_collate.collate_tensor_fn([tensor])
    return type(collated) is torch.Tensor


def _array_leaf(array: npt.NDArray[np.generic]) -> Leaf:
    if type(array) is not np.ndarray:
        raise _NotFixed(f"a sample contains {with_article(type(array).__name__)}")
    return Leaf("array", array.shape, _numpy_dtype(array.dtype))


def _text_leaf(text: str | bytes) -> Leaf:
    # Other texts of the dataset may be longer than the first.
    capacity = max(_TEXT_BYTES, 4 * len(encoded_text(text)))
    return Leaf("text", (TEXT_LENGTH.itemsize + capacity,), torch.uint8, type(text))


def encoded_text(text: Any) -> bytes:
    """Returns the bytes of a text (str or bytes) in its row."""
    encoded: bytes = text if type(text) is bytes else text.encode("utf-8", "surrogatepass")
    return encoded


def _text(leaf: Leaf, row: npt.NDArray[np.uint8]) -> str | bytes:
    length = int(row[: TEXT_LENGTH.itemsize].view(TEXT_LENGTH)[0])
    encoded = row[TEXT_LENGTH.itemsize : TEXT_LENGTH.itemsize + length].tobytes()
    return encoded if leaf.scalar is bytes else encoded.decode("utf-8", "surrogatepass")


def _numpy_dtype(dtype: np.dtype[np.generic]) -> torch.dtype:
    try:
        if not dtype.isnative:
            raise TypeError
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except TypeError:
        raise _NotFixed(f"a sample contains numpy values of type {dtype}") from None


def with_article(name: str) -> str:
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


def _describe(node: Node) -> str:
    if _is_text(node):
        return str(node.scalar.__name__)  # type: ignore[union-attr]
    if isinstance(node, Leaf):
        kind = node.scalar.__name__ if node.scalar else str(node.dtype).removeprefix("torch.")
        return " ".join([kind, " x ".join(map(str, node.shape))]).strip()
    parts = [_describe(child) for child in node.children]
    if node.keys is not None:
        pairs = zip(node.keys, parts, strict=True)
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in pairs) + "}"
    return f"({', '.join(parts)})" if node.kind is not list else f"[{', '.join(parts)}]"


def _collect(node: Node, found: list[Leaf]) -> None:
    if isinstance(node, Leaf):
        found.append(node)
    else:
        for child in node.children:
            _collect(child, found)


def _build(node: Node, make: Callable[[Leaf], Sample], list_only: bool = True) -> Batch:
    """Builds the structure; with ``list_only`` tuples become lists, as by ``default_collate``."""
    if isinstance(node, Leaf):
        return make(node)
    parts = [_build(child, make, list_only) for child in node.children]
    if node.keys is not None:
        return dict(zip(node.keys, parts, strict=True))
    if list_only:  # default_collate's zip() makes tuples of texts
        pairs = zip(parts, node.children, strict=True)
        parts = [tuple(part) if _is_text(child) else part for part, child in pairs]
    if hasattr(node.kind, "_fields"):
        return node.kind(*parts)
    return parts if list_only or node.kind is list else tuple(parts)


def _is_text(node: Node) -> bool:
    return isinstance(node, Leaf) and node.kind == "text"


def _as_batch(leaf: Leaf, tensor: torch.Tensor) -> Any:
    """Returns the rows of a leaf as a tensor, or as a list of texts."""
    return [_text(leaf, row) for row in tensor.numpy()] if leaf.kind == "text" else tensor


def _as_leaf(leaf: Leaf, row: torch.Tensor) -> Sample:
    if leaf.kind == "tensor":
        return row
    if leaf.kind == "text":
        return _text(leaf, row.numpy())
    if leaf.kind == "array":
        return row.numpy()
    value = row.item()
    return value if leaf.scalar in _SCALARS else leaf.scalar(value)  # type: ignore[misc]

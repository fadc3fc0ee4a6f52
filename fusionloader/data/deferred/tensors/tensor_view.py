"""What a deferred tensor shows, and the memory that it will lie in, as torch would lay it out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from fusionloader.data.deferred.core import OPERATIONS, DeferredCore
from fusionloader.data.deferred.counts import counts
from fusionloader.data.deferred.guard import PLAIN, guarded
from fusionloader.data.deferred.tensors.level_tables import LEVELS, LevelTable
from fusionloader.transforms.plan.stages import Operation


class Uses:
    """Counts decoded images, to decode at once if hardly any operation is recorded of them.

    Attributes:
        any: whether there was a deferred tensor in this process.
        made: number of deferred tensors.
    """

    FIRST, OTHERS = 32, 64
    decoded = deferred = recorded = made = _before = 0
    any = False

    @classmethod
    def begin_sample(cls) -> None:
        cls._before = cls.made

    @classmethod
    def are_in_sample(cls) -> bool:
        """Whether user code got a deferred tensor since the last ``begin_sample``."""
        return cls.made > cls._before

    @classmethod
    def are_worth_it(cls) -> bool:
        cls.decoded += 1
        few = cls.decoded <= cls.FIRST or cls.decoded % cls.OTHERS == 0
        return few or 4 * cls.recorded > cls.deferred


class TensorMemory:
    """The memory of a tensor that is not made yet, or of several that share it.

    Attributes:
        core: the operations that make its pixels.
        is_interleaved: whether the channels of a pixel lie side by side.
        is_inference: whether it was recorded in torch's inference mode.
        levels: what is made of the pixels' levels.
        strides: of the channels, rows and columns, in elements.
    """

    __slots__ = ("_made", "core", "is_inference", "is_interleaved", "levels", "strides")

    def __init__(self, core: DeferredCore, levels: LevelTable, is_interleaved: bool) -> None:
        self.core, self.levels, self.is_interleaved = core, levels, is_interleaved
        width, height = core.size
        self.strides = (1, 3 * width, 3) if is_interleaved else (height * width, width, 1)
        self.is_inference = torch.is_inference_mode_enabled()
        self._made: dict[None, torch.Tensor] = {}

    @property
    def is_made(self) -> bool:
        return bool(self._made)

    def tensor(self) -> torch.Tensor:
        """Returns all of it as a plain tensor, channels x height x width; makes it if need be."""
        if not self._made:  # threads may come here together: the first one's is used
            self._made.setdefault(None, self._make())
        return self._made[None]

    def _make(self) -> torch.Tensor:
        width, height = self.core.size
        if self.levels is LEVELS and self.is_interleaved:
            return torch.from_numpy(self.core.pixels()).permute(2, 0, 1)
        made = torch.empty((3, height, width), dtype=self.levels.dtype, device="cpu")
        write(self.core, self.levels, made)
        if self.is_interleaved:
            made = made.permute(1, 2, 0).contiguous().permute(2, 0, 1)
        return made

    def count(self, why: str) -> None:
        """Counts that it is going to be made; ``why`` is the function that needs its pixels."""
        if self.core.operations:
            counts().results["pixels"] += 1
            counts().ended[why] += 1
        else:
            counts().results["tensor"] += 1


def _write_natively(core: DeferredCore, levels: LevelTable, out: torch.Tensor) -> Any:
    try:
        core.write(levels.convert, out)
    except ValueError:  # the native executor refuses an operation
        return PLAIN
    return out


def _look_up(core: DeferredCore, levels: LevelTable, out: torch.Tensor) -> torch.Tensor:
    pixels = torch.from_numpy(core.pixels()).permute(2, 0, 1)
    return out.copy_(levels.look_up(pixels))


write = guarded(_write_natively, _look_up, OPERATIONS)
"""Writes the converted pixels of a core to a contiguous tensor, channels x height x width."""


class View(Protocol):
    """What a tensor without pixels shows of a memory, which may not be made yet."""

    def plain(self) -> torch.Tensor:
        """Returns a plain tensor in the memory, which is made here."""


def tensor_in(
    memory: torch.Tensor, offset: int, shape: Sequence[int], strides: Sequence[int]
) -> torch.Tensor:
    """Returns a tensor in the memory of another one, which is no view for autograd."""
    # Signal handlers and finalizers that run meanwhile have torch's functions.
    storage = memory.untyped_storage()
    plain = torch.empty(0, dtype=memory.dtype, device="cpu")
    with torch._C.DisableTorchFunction():
        return plain.set_(storage, memory.storage_offset() + offset, shape, strides)


class TensorView:
    """What a deferred tensor shows: all of a memory, or a part.

    Attributes:
        core: the operations that make its pixels.
        memory: the memory that it lies in.
        offset: of its first element, in elements.
    """

    __slots__ = ("core", "memory", "offset")

    def __init__(self, memory: TensorMemory, core: DeferredCore, offset: int = 0) -> None:
        self.memory, self.core, self.offset = memory, core, offset

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()  # user code has copied it to the attributes of another object

    @staticmethod
    def of_all(core: DeferredCore, levels: LevelTable, is_interleaved: bool) -> TensorView:
        """Returns the view of all of a new memory."""
        return TensorView(TensorMemory(core, levels, is_interleaved), core)

    def plain(self) -> torch.Tensor:
        """Returns a plain tensor in its memory, which is made here."""
        shape = 3, *self.core.size[::-1]
        return tensor_in(self.memory.tensor(), self.offset, shape, self.memory.strides)

    def follow(self, core: DeferredCore) -> TensorView:
        """Returns the view that torch would return after the further operations of ``core``."""
        view, done = self, len(self.core.operations)
        Uses.recorded += not done
        for operation in core.operations[done:]:
            view = view._after(operation)
        return view

    def _after(self, operation: Operation) -> TensorView:
        memory, before = self.memory, self.core
        if operation[0] == "contrast":
            # The mean of the image is summed up in the order of its memory.
            rounding = "torch_v2_interleaved" if memory.is_interleaved else "torch_v2"
            operation = "contrast", operation[1], rounding
        size = _size_after(operation, before.size)
        core = DeferredCore(before.source, (*before.operations, operation), "RGB", size)
        if operation[0] == "crop":
            _, row, column = memory.strides
            offset = self.offset + operation[2] * row + operation[1] * column
            return TensorView(memory, core, offset)
        interleaved = memory.is_interleaved and operation[0] not in _PLANAR
        if operation[0] == "resize":  # torch resizes other views to contiguous tensors
            interleaved = interleaved and self._is_dense()
        return TensorView.of_all(core, memory.levels, interleaved)

    def _is_dense(self) -> bool:
        return self.core.size[0] == self.memory.core.size[0]

    def converted(self, levels: LevelTable) -> TensorView:
        """Returns the view of a new memory with the same pixels, converted."""
        return TensorView.of_all(self.core, levels, self.memory.is_interleaved)


# Operations whose results torch writes channel by channel.
_PLANAR = ("hue", "equalize")


def _size_after(operation: Operation, size: tuple[int, int]) -> tuple[int, int]:
    """Returns width and height after a recorded operation."""
    if operation[0] == "crop":
        return operation[3], operation[4]
    return (operation[1], operation[2]) if operation[0] == "resize" else size

"""Tensors of images whose pixels are not made yet, for the code of image processors.

What is recorded of them is in ``image_stack_functions``. An image processor keeps them for the time
of one call, so that they need not become plain tensors.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch

from fusionloader.data.deferred.core import OPERATIONS, DeferredCore
from fusionloader.data.deferred.counts import counts
from fusionloader.data.deferred.guard import PLAIN, guarded
from fusionloader.data.deferred.rows.memory import sample_tensor
from fusionloader.data.deferred.tensors.deferred_tensor import (
    Unmade,
    get_view,
    make_plain,
    set_view,
)
from fusionloader.data.deferred.tensors.tensor_view import tensor_in
from fusionloader.transforms.plan.stages import Convert
from fusionloader.transforms.plan.torchvision.conversions import ELEMENTS

Function = Callable[..., Any]

# Makes what was recorded of other images.
Maker = Callable[[Sequence[DeferredCore]], Any]

IMAGE_LEVELS = torch.arange(256, dtype=torch.uint8, device="cpu").repeat(3).view(1, 3, 256, 1)
_CPU = torch.device("cpu")
_MOST_LEVELS = 64  # tensors of levels whose conversions are cached


class Reads(threading.local):
    """What the code that runs in this thread has read.

    Attributes:
        names: ``"size"`` if the code may depend on sizes that are those of the images.
    """

    def __init__(self) -> None:
        self.names = set[str]()


reads = Reads()


def _shaped(*shape: int) -> torch.Tensor:
    """Returns a tensor without memory, on which torch shows what it makes of a shape."""
    return torch.empty(shape, device="meta")


class _Part(NamedTuple):
    """An image in a memory.

    Attributes:
        core: its pixels, 3 x height x width.
        order: sizes, strides and offset of the tensor of these pixels whose elements, one after the
            other, lie in the memory; ``None`` for the pixels as they are.
    """

    core: DeferredCore
    order: tuple[tuple[int, ...], tuple[int, ...], int] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        width, height = self.core.size
        return (3, height, width) if self.order is None else self.order[0]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def write(self, levels: torch.Tensor, out: torch.Tensor) -> None:
        """Writes the elements to a tensor of one dimension."""
        _write(self, levels, out)

    def _natively(self, levels: torch.Tensor, out: torch.Tensor) -> Any:
        try:
            self.core.write(_convert(levels), out, () if self.order is None else self._loops())
        except ValueError:  # the native executor refuses an operation, or the order
            return PLAIN
        return out

    def _loops(self) -> tuple[tuple[int, int, int], ...]:
        """Returns sizes, and steps in the image and in the memory, of which all is meant."""
        assert self.order is not None
        sizes, strides, _ = self.order
        steps = itertools.accumulate(sizes[:0:-1], operator.mul, initial=1)
        return tuple(zip(sizes, strides, [*steps][::-1], strict=True))

    def _looked_up(self, levels: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        pixels = torch.from_numpy(self.core.pixels()).permute(2, 0, 1).long()
        image = torch.stack([levels[0, n, :, 0][plane] for n, plane in enumerate(pixels)])
        ordered = image if self.order is None else image.as_strided(*self.order)
        return out.copy_(ordered.reshape(-1))


_write = guarded(_Part._natively, _Part._looked_up, OPERATIONS)


@functools.lru_cache(_MOST_LEVELS)
def _convert(levels: torch.Tensor) -> Convert:
    content = levels.reshape(-1).view(torch.uint8).numpy().tobytes()
    return Convert(ELEMENTS[levels.dtype], content)


class _Memory:
    """The memory of a tensor, which may not be made yet: one or more images after each other.

    Attributes:
        is_inference: whether it was recorded in torch's inference mode.
        is_sized: whether its shape is that of the images, as they were given to the processor.
        levels: what is made of the images' levels, 1 x 3 x 256 x 1.
        parts: the images.
        shape: shape of the whole memory.
        window: a tensor of other images, and the rows and columns of it that this memory is.
    """

    __slots__ = ("_made", "is_inference", "is_sized", "levels", "parts", "shape", "window")

    def __init__(
        self,
        parts: Sequence[_Part],
        levels: torch.Tensor,
        shape: Sequence[int],
        window: tuple[StackView, slice, slice] | None = None,
    ) -> None:
        self.parts, self.levels, self.shape, self.window = tuple(parts), levels, shape, window
        self.is_sized = False
        self.is_inference = torch.is_inference_mode_enabled()
        self._made: torch.Tensor | None = None

    @property
    def is_made(self) -> bool:
        return self._made is not None or self.window is not None and self.window[0].memory.is_made

    def count(self, why: str) -> None:
        pass  # each image is counted

    def tensor(self) -> torch.Tensor:
        """Returns all of it as a plain tensor, the same one at each call."""
        if self._made is None and self.window is not None:
            view, rows, columns = self.window
            made = view.plain()[..., rows, columns]
            self._made = made if made.dim() == 4 else made[None]
        if self._made is None:
            self._made = self._write(torch.empty(self.shape, dtype=self.levels.dtype, device=_CPU))
        return self._made

    def finish(self) -> None:
        """Makes it for the caller: a single image in its row."""
        if self.is_made or self.window is not None or len(self.parts) > 1:
            return
        batch, *shape = self.shape
        # Not a view, as the result of torch.stack is none.
        made = self._write(sample_tensor(shape if batch == 1 else self.shape, self.levels.dtype))
        self._made = made.unsqueeze_(0) if batch == 1 else made

    def _write(self, out: torch.Tensor) -> torch.Tensor:
        begin, memory = 0, out.view(-1)
        for part in self.parts:
            end = begin + part.elements
            part.write(self.levels, memory[begin:end])
            begin = end
        counts().results["tensor"] += len(self.parts)
        return out


class StackView:
    """What an ``ImageStack`` shows of a memory.

    Attributes:
        memory: the memory.
        alias: tensor without memory, with shape, strides and offset.
    """

    __slots__ = ("alias", "memory")

    def __init__(self, memory: _Memory, alias: torch.Tensor) -> None:
        self.memory, self.alias = memory, alias

    @staticmethod
    def of(
        parts: Sequence[_Part],
        levels: torch.Tensor,
        shape: Sequence[int],
        window: tuple[StackView, slice, slice] | None = None,
    ) -> StackView:
        """Returns the view of all of a new memory."""
        return StackView(_Memory(parts, levels, shape, window), _shaped(*shape))

    def plain(self) -> torch.Tensor:
        """Returns a plain tensor in the memory, which is made here."""
        whole, alias = self.memory.tensor(), self.alias
        if self.memory.window is None:
            return tensor_in(whole, int(alias.storage_offset()), alias.shape, alias.stride())
        first = alias.storage_offset() // whole[0].numel()
        shown = whole[first] if alias.dim() == 3 else whole[first : first + len(alias)]
        return tensor_in(shown, 0, shown.shape, shown.stride())

    def finished(self) -> torch.Tensor:
        """Returns the plain tensor for the caller."""
        self.memory.finish()
        whole, alias = self.memory.tensor(), self.alias
        return whole if alias.shape == whole.shape and alias.is_contiguous() else self.plain()

    def read_size(self) -> None:
        """Notes that code may depend on the shape."""
        if self.memory.is_sized:
            reads.names.add("size")

    def parts(self) -> tuple[_Part, ...]:
        """Returns the images that lie in the memory as they do here; none if only parts of some."""
        begin, alias = int(self.alias.storage_offset()), self.alias
        bounds = [0, *itertools.accumulate(part.elements for part in self.memory.parts)]
        end = begin + alias.numel()
        if not (alias.is_contiguous() and begin in bounds and end in bounds):
            return ()
        return self.memory.parts[bounds.index(begin) : bounds.index(end)]

    def cores(self) -> list[DeferredCore]:
        """Returns the images; none if this is not 3 x height x width or N x 3 x height x width."""
        parts = self.parts()
        if any(part.order is not None for part in parts) or self.alias.dim() not in (3, 4):
            return []
        are_images = all(part.shape == self.alias.shape[-3:] for part in parts)
        return [part.core for part in parts] if are_images else []

    def like(
        self,
        cores: Sequence[DeferredCore | None],
        window: tuple[StackView, slice, slice] | None = None,
    ) -> Any:
        """Returns a tensor of changed images; ``PLAIN`` if the change is not recorded for all."""
        parts = [_Part(core) for core in cores if core is not None]
        if not parts or len(parts) < len(cores):
            return PLAIN
        shape = *self.alias.shape[:-3], *parts[0].shape
        return ImageStack.of(StackView.of(parts, IMAGE_LEVELS, shape, window))

    def converted(self, levels: torch.Tensor) -> Any:
        """Returns a converted tensor; ``PLAIN`` if native code does not do it."""
        parts = self.parts()
        if (
            levels.shape != IMAGE_LEVELS.shape
            or levels.dtype not in ELEMENTS
            or levels.requires_grad
        ):
            return PLAIN
        return ImageStack.of(StackView.of(parts, levels, self.alias.shape)) if parts else PLAIN

    def copied(self, shape: torch.Size) -> Any:
        """Returns a copy of another shape, with the elements in the order of this view."""
        memory, alias = self.memory, self.alias
        count, several = memory.parts[0].elements, len(memory.parts) > 1
        if any(part.order is not None or part.elements != count for part in memory.parts):
            return PLAIN
        if alias.numel() == 0:
            return PLAIN
        if several:  # each has to be one after the other
            if alias.shape[:1] != (len(memory.parts),) or alias.stride(0) != count:
                return PLAIN
            alias = alias[0]
        order = tuple(alias.shape), alias.stride(), int(alias.storage_offset())
        parts = [part._replace(order=order) for part in memory.parts]
        return ImageStack.of(StackView.of(parts, memory.levels, shape))


class ImageStack(Unmade):
    """Images, 3 x height x width or N x 3 x height x width, or their pixels in another order."""

    recorders: ClassVar[dict[Function, Function]] = {}  # image_stack_functions fills it

    @staticmethod
    def of(view: StackView) -> ImageStack:
        """Returns the tensor of a view."""
        alias = view.alias
        with torch._C.DisableTorchFunction():
            made: ImageStack = torch.Tensor._make_wrapper_subclass(
                ImageStack,
                alias.shape,
                strides=alias.stride(),
                storage_offset=alias.storage_offset(),
                dtype=view.memory.levels.dtype,
                device=_CPU,
            )
        set_view(made, view)
        return made

    @classmethod
    def __torch_function__(
        cls,
        func: Function,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Notes that code may depend on the shape; the rest is done as in the base class."""
        if func not in cls.recorders:
            reads.names.add("size")
        return super().__torch_function__(func, types, args, kwargs)

    # Methods and properties of its own take less time than __torch_function__.

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        view = get_view(self)
        view.read_size()
        return view.alias.shape  # type: ignore[no-any-return]

    dtype = property(lambda self: get_view(self).memory.levels.dtype)
    device = property(lambda self: _CPU)


def image_stack(core: DeferredCore) -> ImageStack:
    """Returns the uint8 tensor of an RGB image, 3 x height x width."""
    part = _Part(core)
    view = StackView.of([part], IMAGE_LEVELS, part.shape)
    view.memory.is_sized = True
    return ImageStack.of(view)


def find_view(tensor: object) -> StackView | None:
    """Returns the view of an ``ImageStack``; ``None`` for any other object.

    If the memory is made, the tensor is made here.
    """
    if type(tensor) is not ImageStack:
        return None
    view: StackView | None = get_view(tensor)
    if view is None or view.memory.is_made:
        make_plain(tensor)
        return None
    return view


def finished(tensor: ImageStack) -> torch.Tensor:
    """Returns the plain tensor for the caller."""
    view = get_view(tensor)
    return tensor if view is None else view.finished()


def recorded_image(tensor: object) -> tuple[DeferredCore, Convert] | None:
    """Returns what is recorded for a tensor of one image; ``None`` if there is more to it."""
    view = find_view(tensor)
    cores = [] if view is None else view.cores()
    if view is None or len(cores) != 1:
        return None
    return cores[0], _convert(view.memory.levels)


class Remade(NamedTuple):
    """How an ``ImageStack`` is made of other images.

    Attributes:
        make: makes the plain tensor of their cores.
        memory: the memory of the stack that was recorded.
        resized: size that the images are resized to first; ``None`` if they are not.
    """

    make: Maker
    memory: object
    resized: tuple[int, int] | None


def remaking(stack: ImageStack, cores: Sequence[DeferredCore]) -> Remade | None:
    """Returns how to make the same of other images; ``None`` if that is not known.

    ``cores`` are those of the images that the stack is made of, before anything was done to them.
    """
    view = find_view(stack)
    if view is None or view.memory.window is not None:
        return None
    memory, alias, found = view.memory, view.alias, []
    numbers = {id(core.source): number for number, core in enumerate(cores)}
    for core, order in memory.parts:
        number = numbers.get(id(core.source), -1)
        before = cores[number].operations
        if number < 0 or core.operations[: len(before)] != before:
            return None
        found.append((number, core.operations[len(before) :], core.size, order))
    levels, shape = memory.levels, memory.shape

    def make(cores: Sequence[DeferredCore]) -> torch.Tensor:
        parts = [
            _Part(cores[number].as_mode("RGB").after(operations, size), order)
            for number, operations, size, order in found
        ]
        return StackView(_Memory(parts, levels, shape), alias).finished()

    firsts: list[Any] = [operations[0] if operations else ("",) for _, operations, _, _ in found]
    resized = {first[1:3] if first[0] == "resize" else None for first in firsts}
    return Remade(make, memory, resized.pop() if len(resized) == 1 else None)

"""Tensors of images whose pixels are not made yet, for the code of image processors.

An image processor keeps them for the time of one call, so that they need not become plain tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fusionloader.data.deferred import methods
from fusionloader.data.deferred.core import DeferredCore
from fusionloader.data.deferred.counts import counts
from fusionloader.data.deferred.enhancing import padded
from fusionloader.data.deferred.guard import PLAIN, guarded
from fusionloader.data.deferred.pillow import Argument
from fusionloader.data.deferred.rows.memory import sample_tensor
from fusionloader.transforms.plan.stages import Convert
from fusionloader.transforms.plan.torchvision.conversions import ELEMENTS
from fusionloader.transforms.plan.torchvision.on_tensors import TORCH_FILTERS, resizes_levels

Function = Callable[..., Any]

_LEVELS = torch.arange(256, dtype=torch.uint8, device="cpu").repeat(3).view(1, 3, 256, 1)
_CPU = torch.device("cpu")


class _Pixels:
    """The memory of a tensor of images, N x 3 x height x width, which may not be made yet.

    Attributes:
        cores: the images, which have the same size.
        levels: what is made of their levels, 1 x 3 x 256 x 1.
    """

    __slots__ = ("_made", "_window", "cores", "levels")

    def __init__(
        self,
        cores: Sequence[DeferredCore],
        levels: torch.Tensor,
        window: tuple[_Pixels, slice, slice] | None = None,
    ) -> None:
        """``window`` has other pixels, and the rows and columns of them that these are."""
        self.cores, self.levels, self._window = cores, levels, window
        self._made: torch.Tensor | None = None

    @property
    def is_made(self) -> bool:
        return self._made is not None or self._window is not None and self._window[0].is_made

    def tensor(self) -> torch.Tensor:
        """Returns all of them as a plain tensor, the same one at each call."""
        if self._made is None and self._window is not None:
            whole, rows, columns = self._window
            self._made = whole.tensor()[..., rows, columns]
        if self._made is None:
            width, height = self.cores[0].size
            shape = len(self.cores), 3, height, width
            self._make(torch.empty(shape, dtype=self.levels.dtype, device="cpu"))
        assert self._made is not None
        return self._made

    def finished(self) -> torch.Tensor:
        """Returns the tensor for the caller: that of a single image in its row."""
        if not self.is_made and self._window is None and len(self.cores) == 1:
            width, height = self.cores[0].size
            # Not a view, as the result of torch.stack is none.
            self._make(sample_tensor((3, height, width), self.levels.dtype).unsqueeze_(0))
        return self.tensor()

    @property
    def convert(self) -> Convert:
        return Convert(ELEMENTS[self.levels.dtype], self.levels.numpy().tobytes())

    def _make(self, out: torch.Tensor) -> None:
        convert = self.convert
        for core, image in zip(self.cores, out, strict=True):
            try:
                core.write(convert, image)
            except ValueError:  # the native executor refuses an operation
                for plane, levels, pixels in zip(
                    image, self.levels[0, ..., 0], core.pixels().transpose(2, 0, 1), strict=True
                ):
                    plane.copy_(levels[torch.from_numpy(pixels).long()])
        counts().results["tensor"] += len(self.cores)
        self._made = out


def _recorded(record: Function) -> Function:
    """Returns a method that records, or calls torch's method with tensors that are made."""
    name = record.__name__
    method = getattr(torch.Tensor, name)

    def attempt(self: ImageStack, *arguments: Any, **named: Any) -> Any:
        return PLAIN if self.pixels.is_made else record(self, *arguments, **named)

    def plain(*arguments: Any, **named: Any) -> Any:
        return _call_plain(method, *arguments, **named)

    return guarded(attempt, plain, f"torch.Tensor.{name}")


def image_stack(core: DeferredCore) -> ImageStack:
    """Returns the uint8 tensor of an RGB image, 3 x height x width."""
    return ImageStack.of(_Pixels([core], _LEVELS), 0)


class ImageStack(torch.Tensor):
    """An image, 3 x height x width, or several, N x 3 x height x width, without pixels yet.

    Attributes:
        pixels: the memory.
        place: number of the image in it; ``None`` for all of them.
    """

    pixels: _Pixels
    place: int | None
    _shape: torch.Size

    @staticmethod
    def of(pixels: _Pixels, place: int | None = None) -> ImageStack:
        """Returns the tensor of one of the images, or of all."""
        width, height = pixels.cores[0].size
        count = (len(pixels.cores),) if place is None else ()
        shape = torch.Size((*count, 3, height, width))
        with torch._C.DisableTorchFunction():
            made: ImageStack = torch.Tensor._make_wrapper_subclass(
                ImageStack, shape, dtype=pixels.levels.dtype, device=_CPU
            )
        made.pixels, made.place, made._shape = pixels, place, shape
        return made

    def plain(self) -> torch.Tensor:
        """Returns the plain tensor, over the same memory at each call."""
        return self._of(self.pixels.tensor())

    def finished(self) -> torch.Tensor:
        """Returns the plain tensor for the caller."""
        return self._of(self.pixels.finished())

    def _of(self, whole: torch.Tensor) -> torch.Tensor:
        return whole if self.place is None else whole[self.place]

    # Methods and properties of their own take less time than __torch_function__.

    shape = property(lambda self: self._shape)
    dtype = property(lambda self: self.pixels.levels.dtype)
    device = property(lambda self: _CPU)

    @_recorded
    def size(self, dim: Argument = None) -> Any:
        return self._shape if dim is None else self._shape[dim]

    @_recorded
    def unsqueeze(self, dim: Argument) -> Any:
        alone = self.place is not None and len(self.pixels.cores) == 1
        return ImageStack.of(self.pixels) if dim == 0 and alone else PLAIN

    @_recorded
    def __getitem__(self, index: Argument) -> Any:
        count = len(self.pixels.cores)
        if self.place is not None or type(index) is not int or not -count <= index < count:
            return PLAIN
        return ImageStack.of(self.pixels, index % count)

    @_recorded
    def to(self, *arguments: Argument, **named: Argument) -> Any:
        dtype = arguments[0] if len(arguments) == 1 and not named else None
        if type(dtype) is not torch.dtype:
            return PLAIN
        return self if dtype is self.dtype else self.converted(self.pixels.levels.to(dtype))

    @_recorded
    def __mul__(self, number: Argument) -> Any:
        if type(number) not in (int, float):
            return PLAIN
        return self.converted(self.pixels.levels * number)

    def after(
        self,
        cores: Sequence[DeferredCore | None],
        window: tuple[_Pixels, slice, slice] | None = None,
    ) -> Any:
        """Returns the images after an operation; ``PLAIN`` if it is not recorded for all."""
        known = [core for core in cores if core is not None]
        if len(known) < len(cores):
            return PLAIN
        return ImageStack.of(_Pixels(known, _LEVELS, window), self.place)

    def converted(self, levels: torch.Tensor) -> Any:
        """Returns the images after a conversion; ``PLAIN`` if native code does not do it."""
        if levels.shape != _LEVELS.shape or levels.dtype not in ELEMENTS or levels.requires_grad:
            return PLAIN
        return ImageStack.of(_Pixels(self.pixels.cores, levels), self.place)

    @classmethod
    def __torch_function__(
        cls,
        func: Function,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Records ``torch.stack``, answers what needs no pixels, or makes the pixels first."""
        named = kwargs or {}
        if func is torch.stack:
            return _stack(*args, **named)
        if func in _ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **named)
        return _call_plain(func, *args, **named)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Function,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Makes the pixels of tensors that are used from C++."""
        return _call_plain(func, *args, **(kwargs or {}))


_ABOUT = frozenset(
    [
        *(getattr(torch.Tensor, name).__get__ for name in ("ndim", "layout", "requires_grad")),
        *(
            getattr(torch.Tensor, name)
            for name in ("dim", "numel", "stride", "is_floating_point", "__len__")
        ),
    ]
)


def _call_plain(func: Function, *args: Any, **named: Any) -> Any:
    """Calls a function of torch with tensors that are made."""
    with torch._C.DisableTorchFunctionSubclass():
        return func(*_made(args), **_made(named))


def _made(value: Any) -> Any:
    if isinstance(value, ImageStack):
        return value.plain()
    if isinstance(value, dict):
        return {key: _made(each) for key, each in value.items()}
    return type(value)(map(_made, value)) if type(value) in (list, tuple) else value


def _stacked(tensors: Argument, dim: Argument = 0, **named: Argument) -> Any:
    """Records ``torch.stack`` of images of one size."""
    if named or dim != 0 or not all(type(each) is ImageStack for each in tensors):
        return PLAIN
    first = tensors[0]
    levels = first.pixels.levels
    for each in tensors:
        other = each.pixels.levels
        if each.place is None or each.pixels.is_made or each.shape != first.shape:
            return PLAIN
        if other is not levels and (other.dtype != levels.dtype or not torch.equal(other, levels)):
            return PLAIN
    return ImageStack.of(_Pixels([each.pixels.cores[each.place] for each in tensors], levels))


_stack = guarded(_stacked, functools.partial(_call_plain, torch.stack), "torch.stack")


def _resize(
    images: ImageStack,
    size: Argument,
    interpolation: Argument,
    max_size: Argument = None,
    antialias: Argument = True,
) -> Any:
    mode: Argument = getattr(interpolation, "value", None)
    if antialias is not True or max_size is not None or not isinstance(size, (list, tuple)):
        return PLAIN
    # torch fails to resize to a single pixel.
    if len(size) != 2 or not _are_sides(*size) or min(*size, *images.shape[-2:]) < 2:
        return PLAIN
    if images.pixels.levels is not _LEVELS or not resizes_levels(mode):
        return PLAIN
    height, width = size
    if (height, width) == images.shape[-2:]:
        return images
    operation = "resize", width, height, TORCH_FILTERS[mode]
    return images.after([core.then(operation, (width, height)) for core in images.pixels.cores])


def _crop(
    images: ImageStack, top: Argument, left: Argument, height: Argument, width: Argument
) -> Any:
    if not (type(top) is type(left) is int) or not _are_sides(height, width):
        return PLAIN
    pixels, (most_rows, most_columns) = images.pixels, images.shape[-2:]
    bottom, right = top + height, left + width
    if pixels.levels is not _LEVELS:
        return PLAIN
    window = None  # outside, torch pads a copy
    if min(top, left) >= 0 and bottom <= most_rows and right <= most_columns:
        window = pixels, slice(top, bottom), slice(left, right)
    return images.after(
        [methods.crop(core, (left, top, right, bottom)) for core in pixels.cores], window
    )


def _pad(
    images: ImageStack,
    padding: Argument,
    fill: Argument = None,
    padding_mode: Argument = "constant",
) -> Any:
    color = fill if isinstance(fill, (list, tuple)) else (0 if fill is None else fill,) * 3
    if images.pixels.levels is not _LEVELS or padding_mode != "constant":
        return PLAIN
    if not isinstance(padding, (list, tuple)) or len(padding) != 4 or len(color) != 3:
        return PLAIN
    if not all(type(level) is int and 0 <= level <= 255 for level in color):
        return PLAIN
    return images.after([padded(core, padding, tuple(color)) for core in images.pixels.cores])


def _normalize(images: ImageStack, mean: Argument, std: Argument, inplace: Argument = False) -> Any:
    from torchvision.transforms.v2 import functional

    if not (_is_for_channels(mean) and _is_for_channels(std)):
        return PLAIN
    pixels = images.pixels
    try:
        made = images.converted(functional.normalize_image(pixels.levels, mean, std))
    except (RuntimeError, TypeError, ValueError):  # torchvision has it for the images, too
        return PLAIN
    if not inplace or made is PLAIN:
        return made
    if images.place is not None and len(pixels.cores) > 1:
        return PLAIN
    pixels.levels = made.pixels.levels
    return images


def _is_for_channels(values: Argument) -> bool:
    if type(values) is torch.Tensor:
        return values.ndim == 1
    return isinstance(values, (list, tuple)) and all(type(each) in (int, float) for each in values)


def _are_sides(*sides: Argument) -> bool:
    return all(type(side) is int and 1 <= side <= methods.MOST_SIDE for side in sides)


KERNELS: dict[str, Function] = {
    "resize": _resize,
    "crop": _crop,
    "pad": _pad,
    "normalize": _normalize,
}
"""Recorders of functionals of torchvision's v2, by name."""


def kernel(name: str, plain: Function) -> Function:
    """Returns the kernel of a functional for ``ImageStack``; ``plain`` is that for tensors."""
    record = KERNELS[name]

    def attempt(images: ImageStack, *arguments: Any, **named: Any) -> Any:
        return PLAIN if images.pixels.is_made else record(images, *arguments, **named)

    return guarded(attempt, plain)

"""What a deferred image holds in place of pixels: a source, and operations still to be done."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFile

from fusionloader.data.deferred import activity
from fusionloader.data.deferred.counts import counts
from fusionloader.data.deferred.guard import PLAIN, call_library, guarded
from fusionloader.data.deferred.pillow import Argument, PillowImage
from fusionloader.data.deferred.rows.memory import sample_tensor
from fusionloader.data.deferred.source import EncodedSource, Operations, Pixels, find_source
from fusionloader.data.deferred.unparsed import UNPARSED, UnparsedFile
from fusionloader.transforms.executors.native import Order, sized_executor
from fusionloader.transforms.executors.results import ELEMENT_TYPES
from fusionloader.transforms.plan.stages import Convert, Operation

BLACK = (0, 0, 0)
_KEPT = "image that is kept for later samples"
_ACCESSES = "_fusionloader_accesses"
_CHANNELS = {"RGB": 3, "L": 1}


class Blank:
    """Stands in for Pillow's ``ImagingCore`` in an image of one color that has no pixels yet.

    Attributes:
        mode: ``"RGB"`` or ``"L"``.
        size: width and height.
        color: levels of red, green and blue.
    """

    __slots__ = ("color", "mode", "size")

    readonly = 0  # read by Image.readonly

    def __init__(self, mode: str, size: tuple[int, int], color: tuple[int, int, int]) -> None:
        self.mode, self.size, self.color = mode, size, color

    def pixels(self) -> Any:
        """Returns Pillow's pixels."""
        pillow: Any = Image
        return pillow.core.fill(
            self.mode, self.size, self.color if self.mode == "RGB" else self.color[0]
        )


class DeferredCore:
    """Stands in for Pillow's ``ImagingCore``; immutable, so that images may share it.

    Attributes:
        mode: ``"RGB"``, ``"L"`` (the first of three equal channels), or ``"RGBA"``, for which only
            ``convert`` is recorded.
        operations: operations to be done, in order.
        size: width and height of the result.
        source: the encoded bytes, or the pixels, that the operations begin with.
    """

    __slots__ = ("mode", "operations", "size", "source")

    readonly = 0  # read by Image.readonly

    def __init__(
        self, source: EncodedSource, operations: Operations, mode: str, size: tuple[int, int]
    ) -> None:
        self.source, self.operations, self.mode, self.size = source, operations, mode, size

    def then(
        self, operation: Operation, size: tuple[int, int] | None = None, mode: str | None = None
    ) -> DeferredCore:
        """Returns the core with one operation more."""
        return self.after((operation,), size or self.size, mode)

    def after(
        self, operations: Collection[Operation], size: tuple[int, int], mode: str | None = None
    ) -> DeferredCore:
        """Returns the core with more operations, whose result has the given size."""
        recorded = counts().recorded
        for operation in operations:
            recorded[operation[0]] += 1
        operations = (*self.operations, *operations)
        return DeferredCore(self.source, operations, mode or self.mode, size)

    def as_mode(self, mode: str) -> DeferredCore:
        """Returns the core of ``image.convert(mode)``."""
        if mode == self.mode:
            return self
        if mode == "L":
            return self.then(("grayscale",), mode="L")
        return DeferredCore(self.source, self.operations, mode, self.size)

    def pixels(self) -> Pixels:
        """Returns uint8 pixels, height x width x channels, or height x width for ``"L"``."""
        if self.mode == "RGBA":
            return self.source.rgba()
        width, height = self.size
        out: Pixels = _run(self)
        return out.reshape(height, width) if self.mode == "L" else out

    def _natively(self) -> Any:
        width, height = self.size
        channels = _CHANNELS[self.mode]
        out = np.empty((height, width, channels), np.uint8)
        runner = sized_executor(channels, height, width)
        try:
            self.source.run(self.operations, runner, out.reshape(-1))
        except ValueError:  # the native executor refuses an operation
            return PLAIN
        return out

    def _replayed(self) -> Pixels:
        return np.array(self.source.replayed(self.operations).convert(self.mode))

    def tensor(self, convert: Convert) -> torch.Tensor:
        """Returns a converted tensor, channels x height x width.

        Raises:
            ValueError: the native executor refuses an operation.
        """
        width, height = self.size
        out = sample_tensor(
            (_CHANNELS[self.mode], height, width), ELEMENT_TYPES[convert.element_type]
        )
        self.write(convert, out)
        counts().results["tensor"] += 1
        return out

    def write(self, convert: Convert, out: torch.Tensor, order: Order = ()) -> None:
        """Writes converted elements to a contiguous tensor, by default channels x height x width.

        Raises:
            ValueError: the native executor refuses an operation, or the order.
        """
        channels, (width, height) = _CHANNELS[self.mode], self.size
        # numpy has no bfloat16, and the executor takes bytes.
        memory = (out.view(torch.uint8) if out.dtype is torch.bfloat16 else out).numpy()
        runner = sized_executor(channels, height, width, convert, order=order)
        self.source.run(self.operations, runner, memory)


OPERATIONS = "the operations that were recorded"
"""Names them in warnings."""

_run = guarded(DeferredCore._natively, DeferredCore._replayed, OPERATIONS)


def find_core(image: Argument) -> DeferredCore | None:
    """Returns the core of a deferred image, or of an open file that can be deferred now.

    ``None`` for any other image or object.
    """
    # Tensors have attributes of the same names, and wrappers may forward those of an image.
    if not isinstance(image, Image.Image):
        return None
    core: Any = getattr(image, "_im", None)
    if core is None:
        if UNPARSED in image.__dict__ and defer_unparsed(image):
            core = image._im
        elif getattr(image, "tile", None):  # an open file
            call_library(image.load)
            core = image._im
    return core if type(core) is DeferredCore else None


def deferred_core(image: Argument) -> DeferredCore | None:
    """Like ``find_core``, but ``None`` for images with an alpha channel."""
    core = find_core(image)
    return core if core is not None and core.mode in _CHANNELS else None


def defer(image: PillowImage, source: EncodedSource) -> None:
    """Gives the image of an open file a source, and closes the file as Pillow's ``load`` does."""
    image._im = DeferredCore(source, (), image.mode, image.size)
    image.tile, image.readonly, image.map = [], 0, None
    call_library(image.load_end)
    if image._exclusive_fp and image._close_exclusive_fp_after_loading:
        image.fp.close()
    image.fp = None
    counts().files += 1
    source.track(image)


def defer_unparsed(image: PillowImage) -> bool:
    """Defers the pixels of an open file that Pillow has not parsed; returns whether it could."""
    attributes = image.__dict__
    unparsed: UnparsedFile = attributes[UNPARSED]
    # Attributes that the program has asked for, it may have changed.
    if not unparsed.is_untouched(attributes) or not activity.is_active():
        return False
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        return False
    source = find_source(unparsed.opened, unparsed.file)
    if source is None:
        return False
    attributes.update(tile=[], _readonly=0, map=None, fp=None)
    attributes["_im"] = DeferredCore(source, (), image.mode, image.size)
    unparsed.leave()
    counts().files += 1
    source.track(image)
    return True


def make_image(core: DeferredCore, info: dict[Any, Any] | None = None) -> Image.Image:
    """Returns a new Pillow image of a core, as Pillow makes one."""
    image: PillowImage = Image.Image()
    image._im = core
    image._mode, image._size = core.mode, core.size
    if info is not None:
        image.info = info
    core.source.track(image)
    return image  # type: ignore[no-any-return]


def wrap_pixels(pixels: Pixels, info: dict[Any, Any]) -> Image.Image:
    """Returns a deferred RGB image over pixels, height x width x 3, without copying them."""
    height, width, _ = pixels.shape
    size = width, height
    return make_image(DeferredCore(EncodedSource(b"", size, pixels), (), "RGB", size), info)


def like(image: PillowImage, core: DeferredCore) -> Image.Image:
    """Returns a new image of a core with the ``info`` of ``image``, as ``image._new`` does."""
    made: PillowImage
    unparsed = image.__dict__.get(UNPARSED)
    if unparsed is None or "info" in image.__dict__:
        made = image._new(core)
    else:
        made = Image.Image.__new__(Image.Image)
        made.__dict__.update(
            _im=core, _mode=core.mode, _size=core.size, _readonly=0, palette=None, _exif=None
        )
        made.__dict__[UNPARSED] = unparsed
    core.source.track(made)
    return made  # type: ignore[no-any-return]


def settle(image: PillowImage, why: str = "") -> None:
    """Gives a deferred image its pixels; counted under ``why``, by default the calling function."""
    core = image._im
    if type(core) is Blank:
        pixels = core.pixels()
        if image._im is core:  # else another thread was faster
            image._im = pixels
        core = image._im
    if type(core) is not DeferredCore:
        return
    made = _make_pixels(core)
    if image._im is core:  # else another thread was faster
        image._im = made
        for reference in image.__dict__.pop(_ACCESSES, ()):
            access = reference()
            if access is not None and access.core is core:
                access.show(made)
        counts().results["pixels"] += 1
        counts().ended[why or _find_caller()] += 1


def make_own(image: PillowImage) -> None:
    """Gives a deferred image pixels of its own; operations on these are deferred."""
    core = image._im
    if core.mode != "RGB" or _ACCESSES in image.__dict__:
        settle(image, _KEPT)
        return
    source = EncodedSource(b"", core.size, core.pixels())
    if image._im is core:  # else another thread was faster
        image._im = DeferredCore(source, (), "RGB", core.size)
        counts().results[_KEPT] += 1


def _make_pixels(core: DeferredCore) -> Any:
    made: Any = Image.frombytes(core.mode, core.size, core.pixels().reshape(-1).data)
    return made._im


class Access:
    """The pixel access that ``load()`` returns for a deferred image; makes pixels on first use.

    Attributes:
        core: what the image holds now. It may hold another one later.
    """

    def __init__(self, image: PillowImage) -> None:
        self._image, self.core, self._real = image, image._im, None
        image.__dict__.setdefault(_ACCESSES, []).append(weakref.ref(self))

    def show(self, pixels: Any) -> None:
        """Uses these pixels from now on, even if the image gets others."""
        self._real = pixels.pixel_access(0)

    def _access_pixels(self) -> Any:
        if self._real is None and self._image._im is self.core:
            settle(self._image)
        if self._real is None:  # the image has other pixels now
            self.show(_make_pixels(self.core))
        return self._real

    def __getitem__(self, xy: Any) -> Any:
        return self._access_pixels()[xy]

    def __setitem__(self, xy: Any, value: Any) -> None:
        self._access_pixels()[xy] = value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._access_pixels(), name)


def _find_caller() -> str:
    """Returns the outermost function of Pillow on the stack, which user code called."""
    frame: Any = sys._getframe(1)
    name = "pixels"
    while frame is not None:
        package, _, module = frame.f_globals.get("__name__", "").partition(".")
        if package == "PIL":
            name = f"{module}.{frame.f_code.co_name}"
        elif package != "fusionloader":
            break
        frame = frame.f_back
    return name

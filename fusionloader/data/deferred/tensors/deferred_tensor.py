"""Tensors of images without pixels, which become plain tensors when pixels are needed."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeGuard

import torch

from fusionloader._native import OpenedJpeg
from fusionloader.data.deferred import activity
from fusionloader.data.deferred.core import DeferredCore
from fusionloader.data.deferred.counts import counts
from fusionloader.data.deferred.guard import PLAIN
from fusionloader.data.deferred.rows.memory import sample_tensor
from fusionloader.data.deferred.source import EncodedSource, Pixels
from fusionloader.data.deferred.tensors.level_tables import LEVELS
from fusionloader.data.deferred.tensors.tensor_view import TensorView, Uses, View, write
from fusionloader.system.processes import renewed_in_children
from fusionloader.transforms.executors.native import MOST_ENCODED_BYTES

Function = Callable[..., Any]

_VIEW = "_fusionloader_view"  # begins the name of an attribute
_set_class = object.__dict__["__class__"].__set__
# The caller's containers of samples may be nested, or contain themselves.
_MOST_NESTED = 8


class LikePlain(type(torch.Tensor)):  # type: ignore[misc]
    """The type of classes of deferred tensors, which equal the class that they will be.

    So torchvision's dictionaries of types find them, as in ``ToDtype({tv_tensors.Image: ...})``.
    """

    plain: type[torch.Tensor]

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.plain

    def __hash__(cls) -> int:
        return hash(cls.plain)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls.plain(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.plain)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls.plain)

    def become(cls, plain: type[torch.Tensor]) -> None:
        """Sets the class that its tensors will be."""
        cls.plain = plain
        for name in ("__name__", "__qualname__", "__module__"):
            setattr(cls, name, getattr(plain, name))


class Unmade(torch.Tensor):
    """A tensor whose pixels are not made yet; afterwards the same object is a plain tensor.

    Attributes:
        plain: class of the plain tensor.
        recorders: replacements of torch's functions.
    """

    plain: type[torch.Tensor] = torch.Tensor
    recorders: ClassVar[dict[Function, Function]]

    @classmethod
    def __torch_function__(
        cls,
        func: Function,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Answers what needs no pixels, records what is recorded, or makes the tensors first."""
        named = kwargs or {}
        if func in _ABOUT:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **named)
        record = cls.recorders.get(func)
        if record is not None:
            return record(*args, **named)
        return call_plain(func, *args, **named)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Function,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Makes the tensors that are used from C++."""
        return call_plain(func, *args, **(kwargs or {}))

    def as_subclass(self, cls: type[torch.Tensor]) -> Any:
        """Makes the tensor, and does what torch does: it calls none of the hooks."""
        make_plain(self, "torch.as_subclass")
        return self.as_subclass(_plain_type(cls))


class DeferredTensor(Unmade, metaclass=LikePlain):
    """A tensor that user code gets from a decoder or a conversion."""

    recorders: ClassVar[dict[Function, Function]] = {}  # module `recorded` fills it


DeferredTensor.become(torch.Tensor)


def is_deferred(value: object) -> TypeGuard[DeferredTensor]:
    """Whether this is a tensor that is not made yet."""
    return type(type(value)) is LikePlain


_ABOUT = frozenset(
    [
        *(
            getattr(torch.Tensor, name).__get__
            for name in (
                *("shape", "dtype", "device", "layout", "ndim", "itemsize", "nbytes", "is_cpu"),
                *("is_cuda", "is_sparse", "is_quantized", "is_meta", "requires_grad", "is_leaf"),
                *("is_nested", "is_mkldnn", "grad_fn"),
            )
        ),
        *(
            getattr(torch.Tensor, name)
            for name in (
                *("size", "dim", "ndimension", "numel", "nelement", "stride", "is_contiguous"),
                *("storage_offset", "element_size", "is_floating_point", "is_complex"),
                *("is_signed", "get_device", "__len__", "is_conj", "is_neg", "is_inference"),
            )
        ),
    ]
)


def call_plain(func: Function, *args: Any, **named: Any) -> Any:
    """Calls a function of torch after its arguments are made plain tensors."""
    found = False
    for value in _tensors_in((args, named)):
        make_plain(value, _find_name(func))
        found = True
    if found:
        return func(*args, **named)
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **named)


def _find_name(func: Any) -> str:
    """Returns the name of a function of torch, or of the attribute that it reads or sets."""
    name = getattr(func, "__name__", "")
    attribute = getattr(getattr(func, "__self__", None), "__name__", "")
    return f"torch.{attribute if name in ('__get__', '__set__') else name}"


def _tensors_in(value: Any, depth: int = 0) -> Iterator[Unmade]:
    if issubclass(type(value), Unmade):
        yield value
    elif depth < _MOST_NESTED:
        parts = value.values() if isinstance(value, dict) else value
        if isinstance(value, (dict, list, tuple)):
            for part in parts:
                yield from _tensors_in(part, depth + 1)


def defer_pixels(pixels: Pixels) -> DeferredTensor | None:
    """Returns the tensor of decoded pixels, height x width x 3, which belong to it from now on.

    ``None`` if hardly any operation was recorded of the images before.
    """
    if not (activity.defers_tensors() and Uses.are_worth_it()):
        return None
    Uses.deferred += 1
    height, width, _ = pixels.shape
    core = DeferredCore(EncodedSource(b"", (width, height), pixels), (), "RGB", (width, height))
    return deferred_tensor(TensorView.of_all(core, LEVELS, is_interleaved=True))


def defer(encoded: memoryview, opened: OpenedJpeg | None = None) -> DeferredTensor | None:
    """Returns the tensor of a JPEG file in RGB; ``None`` if it has to be decoded at once.

    The bytes of a file that is not opened are copied, because user code may change them.
    """
    if not (activity.defers_tensors() and Uses.are_worth_it()):
        return None
    if opened is None and len(encoded) <= MOST_ENCODED_BYTES:
        opened = OpenedJpeg.of(bytes(encoded))
    if opened is None or opened.components not in (1, 3):
        return None
    counts().files += 1
    Uses.deferred += 1
    core = DeferredCore(EncodedSource(opened.encoded, opened.size), (), "RGB", opened.size)
    return deferred_tensor(TensorView.of_all(core, LEVELS, is_interleaved=True))


def tensor_of(core: DeferredCore, kind: type[DeferredTensor] = DeferredTensor) -> Any:
    """Returns the tensor of a deferred image of Pillow; ``PLAIN`` if it has to be made at once."""
    if core.mode != "RGB" or not activity.defers_tensors():
        return PLAIN
    return deferred_tensor(TensorView.of_all(core, LEVELS, is_interleaved=True), kind)


def _plain_type(value: Any) -> Any:
    return value.plain if type(value) is LikePlain else value


def taking_plain(original: Function) -> Function:
    """Returns a constructor of torch that calls no hook, for arguments that are made before."""

    @functools.wraps(original)
    def call(*args: Any, **named: Any) -> Any:
        for value in (*args, *named.values()):
            if is_deferred(value):
                make_plain(value, _find_name(original))
        # ``type(deferred)`` may be among them, as in ``tv_tensors.wrap(tensor, like=deferred)``.
        return original(*map(_plain_type, args), **{n: _plain_type(v) for n, v in named.items()})

    return call


def deferred_tensor(
    view: TensorView, kind: type[DeferredTensor] = DeferredTensor
) -> DeferredTensor:
    """Returns a new tensor of a class of deferred tensors."""
    width, height = view.core.size
    memory = view.memory
    made: DeferredTensor = torch.Tensor._make_wrapper_subclass(
        kind,
        (3, height, width),
        strides=memory.strides,
        storage_offset=view.offset,
        dtype=memory.levels.dtype,
        device=_CPU,
    )
    with torch._C.DisableTorchFunction():
        storage = made.untyped_storage()._cdata
        torch._C._set_storage_data_ptr_access_error_msg(storage, _NO_MEMORY)
    set_view(made, view)
    Uses.any = True
    Uses.made += 1
    view.core.source.track(made)
    return made


_CPU = torch.device("cpu")
# The error for C++ code that reads the memory of an argument without calling torch.
_NO_MEMORY = (
    "this tensor of an image decoder has no pixels yet: call a function of torch before, such as "
    "image.clone(), or set deferred_images='auto'"
)


def set_view(tensor: torch.Tensor, view: View) -> None:
    """Keeps a view for a tensor, by a name that is its own: user code may copy attributes."""
    tensor.__dict__[f"{_VIEW}_{id(tensor)}"] = view


def get_view(tensor: torch.Tensor) -> Any:
    """Returns the view of a tensor that is not made; ``None`` if it is made meanwhile."""
    return tensor.__dict__.get(f"{_VIEW}_{id(tensor)}")


def find_view(tensor: object) -> TensorView | None:
    """Returns the view of a deferred tensor; ``None`` for any other object.

    If the memory that it lies in is made, the tensor is made here.
    """
    if not is_deferred(tensor):
        return None
    view: TensorView | None = get_view(tensor)
    if view is None or view.memory.is_made:
        make_plain(tensor)
        return None
    return view


def make_plain(tensor: Unmade, why: str = "") -> None:
    """Makes a tensor; ``why`` is the name of the function that needs its pixels."""
    view = get_view(tensor)
    if view is None:  # it was interrupted, or another thread was faster
        _set_plain_class(tensor)
        return
    memory = view.memory
    if not memory.is_made:
        memory.count(why)
    if memory.is_inference is torch.is_inference_mode_enabled():
        _become(tensor, view.plain(), view)
        return
    with torch.inference_mode(memory.is_inference):
        plain = view.plain()
    _become(tensor, plain, view)


_SHORT = 64
_VALUES = frozenset([int, float, bool, str, bytes])


def _set_plain_class(tensor: Unmade) -> None:
    kind = type(tensor)
    for name in [name for name in tensor.__dict__ if str(name).startswith(_VIEW)]:
        del tensor.__dict__[name]  # also those that were copied from other tensors
    if issubclass(kind, Unmade):
        _set_class(tensor, kind.plain)


_lock = renewed_in_children(threading.RLock())  # signal handlers may make tensors, too


def _become(tensor: Unmade, plain: torch.Tensor, view: View) -> None:
    """Gives a tensor the memory of ``plain``, which becomes what the tensor was.

    C++ code that holds the tensor, as TorchScript does, finds it there when it calls torch again.
    """
    with _lock:
        if not issubclass(type(tensor), Unmade):  # another thread was faster
            return
        set_view(plain, view)
        _set_class(plain, type(tensor))
        if not issubclass(type(tensor), Unmade):  # a signal handler was
            return
        # If this is interrupted, the next use of the tensor does it again.
        torch._C._swap_tensor_impl(tensor, plain)
        _set_plain_class(tensor)


def finish_sample(sample: Any) -> None:
    """Makes the tensors in a sample, in their rows where that is possible."""
    if Uses.any:
        _finish(sample, 0)


def _finish(sample: Any, depth: int) -> None:
    if is_deferred(sample):
        _make_in_row(sample)
    elif type(sample) is dict and depth < _MOST_NESTED:
        for value in sample.values():
            _finish(value, depth + 1)
    elif isinstance(sample, (list, tuple)) and depth < _MOST_NESTED and _may_hold_tensors(sample):
        for value in sample:
            _finish(value, depth + 1)


def finishing(make: Function) -> Function:
    """Returns ``make`` with the tensors of its samples made in their rows."""

    def make_finished(key: Any) -> Any:
        Uses.begin_sample()
        sample = make(key)
        finish_sample(sample)
        return sample

    return make_finished


def finished_first(collate: Function) -> Function:
    """Returns a collate function of user code that gets plain tensors."""

    def call(samples: Any) -> Any:
        finish_sample(samples)
        return collate(samples)

    return call


def _may_hold_tensors(values: Any) -> bool:
    """Whether a sequence is short, or does not begin with a number or a text."""
    return len(values) <= _SHORT or type(values[0]) not in _VALUES


def make_all_plain(batch: Any) -> None:
    """Makes the tensors in a batch of user code."""
    if Uses.any:
        for tensor in _tensors_in(batch):
            make_plain(tensor, "a batch of user code")


def _make_in_row(tensor: DeferredTensor) -> None:
    view = find_view(tensor)
    if view is None:
        return
    memory = view.memory
    if sys.getrefcount(memory) > _REFERENCES:  # others share it
        make_plain(tensor, "other tensors over the same pixels")
        return
    if memory.is_inference is not torch.is_inference_mode_enabled():
        make_plain(tensor, "inference mode")
        return
    made = sample_tensor((3, *view.core.size[::-1]), memory.levels.dtype)
    write(view.core, memory.levels, made)
    _become(tensor, made, view)
    counts().results["tensor"] += 1


def _count_references() -> int:
    view = TensorView(object(), None)  # type: ignore[arg-type]
    memory = view.memory
    return sys.getrefcount(memory)


_REFERENCES = _count_references()  # of a memory, in a function like this

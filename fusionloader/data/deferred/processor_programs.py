"""What image processors made of images, made again of others without running their code.

transformers' code takes as long as it takes to decode an image. Its results are kept by all that
they depend on: the processor's attributes and the arguments, by value, the modes of the images, and
their sizes if the code reads them. They are used as long as the code itself is the same. Results
that depend on anything else, as on pixels or random numbers, are not kept.
"""

from __future__ import annotations

import enum
import functools
import operator
import os
import pickle
import random
import sys
import types
from collections import UserDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.image_processing_backends import TorchvisionBackend
from transformers.image_processing_base import BatchFeature
from transformers.image_utils import SizeDict

from fusionloader.data.deferred.composed.snapshots import Unknown
from fusionloader.data.deferred.core import DeferredCore, defer_unparsed, deferred_core
from fusionloader.data.deferred.guard import PLAIN
from fusionloader.data.deferred.image_stacks import ImageStack, Maker, reads, remaking
from fusionloader.data.deferred.rows.memory import is_plain
from fusionloader.data.deferred.unparsed import UNPARSED, is_transparent

_MOST_MAKERS = 2048  # of a class of processors
_MOST_BYTES = 4096  # of a tensor that is kept
# Calls of a class that are recorded in any case. It takes 0.25 ms more, and as much less if known.
_FEW_CALLS = 64
_MOST_NESTED = 2  # annotations are nested deeper, and differ with each image
_VALUES = frozenset([type(None), bool, int, float, str, torch.dtype, torch.device])
# Modules whose functions are called, beside those in which the processors' classes are defined.
_MODULES = (
    *("transformers.image_transforms", "transformers.image_utils"),
    *("transformers.feature_extraction_utils", "huggingface_hub.dataclasses"),
    "torchvision.transforms.v2.functional",
    *(f"torchvision.transforms.v2.functional._{name}" for name in ("geometry", "misc", "utils")),
)
_RESULTS = BatchFeature.__mro__[: BatchFeature.__mro__.index(UserDict) + 1]
_LIBRARIES = ("transformers", "huggingface_hub", "torch", "torchvision", "numpy", "PIL")
_FOLDERS = tuple(
    f"{os.path.dirname(str(sys.modules[name].__file__))}{os.sep}"
    for name in (*_LIBRARIES, "fusionloader")
)
_PYTHON = f"{os.path.dirname(os.__file__)}{os.sep}"


def _frozen(value: Any, depth: int = 0) -> Hashable:
    """Returns an object that equals those of values of the same types, and no others.

    Raises:
        Unknown: a value of another type, which the program might change.
    """
    kind = type(value)
    if kind in _VALUES or isinstance(value, enum.Enum):
        return kind, value
    if depth > _MOST_NESTED:
        raise Unknown
    if kind in (tuple, list):
        return kind, *[_frozen(each, depth + 1) for each in value]
    if kind is not dict and kind is not SizeDict:
        raise Unknown
    named = value if kind is dict else vars(value)
    return kind, *named, *[_frozen(each, depth + 1) for each in named.values()]


@functools.cache
def _watching(kind: Any) -> Any:
    """Returns a subclass for images whose attributes are noted as they are read."""

    def get(self: Any, name: str) -> Any:
        reads.names.add(name)
        return kind.__getattribute__(self, name)

    return type(kind.__name__, (kind,), {"__getattribute__": get, "__module__": kind.__module__})


def _watched(image: Any) -> Any:
    """Returns an image with the same attributes."""
    kind: Any = type(image)
    made = object.__new__(_watching(kind))
    object.__setattr__(made, "__dict__", image.__dict__)
    return made


# Attributes of images that this package reads, or that are the same in all calls of a program.
_IGNORED = {"_im", "__dict__", "__class__", "mode"}
_SIZES = {"size", "width", "height"}


class _Code:
    """The code of a class of processors, and that of the libraries that it calls.

    Attributes:
        is_known: whether no part of it is of the program.
        makers: what makes the results of its calls, by all that these depend on.
        recorded, known: calls of the class that were recorded, and whose result was known.
    """

    def __init__(self, kind: type, before: _Code | None) -> None:
        self.makers: dict[Hashable, Maker] = {}
        # A change takes the time of a few recordings.
        self.recorded: int = 0 if before is None else before.recorded + 2
        self.known: int = 0 if before is None else before.known
        classes = *kind.__mro__[:-1], *_RESULTS
        modules = {*_MODULES, *(each.__module__ for each in kind.__mro__)} & sys.modules.keys()
        scopes = [vars(each) for each in (*classes, *map(sys.modules.get, modules - {"builtins"}))]
        self._scopes = scopes
        # Code that is loaded again replaces that of methods, and the functions of modules.
        self._methods = [each for scope in scopes[: len(classes)] for each in _functions(scope)]
        codes = {each.__code__ for scope in scopes for each in _functions(scope)}
        # Python's own code uses none, but has equal names: typing of 3.13 has `_deprecated`.
        may_use_torch = [code for code in codes if not _is_of_python(code.co_filename)]
        names = {name for code in may_use_torch for name in _names(code)} & vars(torch).keys()
        self._of_torch = operator.itemgetter("cat", "stack", *names)
        self._then = self._now()
        self.is_known = _are_of_libraries([value for values in self._then for value in values])

    def _now(self) -> list[Sequence[Any]]:
        codes = list(map(_code_of, self._methods))
        values = (list(scope.values()) for scope in self._scopes)
        return [*values, codes, self._of_torch(vars(torch))]

    def is_current(self) -> bool:
        try:
            return self._now() == self._then
        except Exception:  # raised by what was not there then, as by arrays, which have no truth
            return False

    def keep(self, name: Hashable, make: Maker) -> None:
        for oldest in list(self.makers)[: len(self.makers) - _MOST_MAKERS + 1]:
            self.makers.pop(oldest, None)
        self.makers[name] = make


_code_of = operator.attrgetter("__code__")


def _functions(scope: Mapping[str, Any]) -> list[FunctionType]:
    return [value for value in scope.values() if type(value) is FunctionType]


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield from _names(inner)


def _are_of_libraries(values: list[Any]) -> bool:
    """Whether values are, wrap and hold no code of the program."""
    seen = set[int]()
    while values:
        value = values.pop()
        kind = type(value)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if kind is FunctionType:
            if not _is_of_libraries(value.__code__.co_filename):
                return False
            values += [vars(value).get("__wrapped__")]
            for cell in value.__closure__ or ():
                try:
                    held = cell.cell_contents
                except ValueError:  # it is empty
                    return False
                values += map(_holder, held.values() if isinstance(held, dict) else [held])
        elif isinstance(value, type):
            module = value.__module__
            file = getattr(sys.modules.get(module), "__file__", None)
            if module not in sys.builtin_module_names and not _is_of_libraries(str(file)):
                return False
        elif kind in _INNER:
            values.append(getattr(value, _INNER[kind]))
        elif (callable(value) or hasattr(kind, "__get__")) and not (
            kind.__module__ in _BUILTIN and kind is not types.MethodType
        ):
            return False
    return True


def _holder(value: Any) -> Any:
    """Returns the class in place of an object that a decorator holds beside the function."""
    kind = type(value)
    is_itself = isinstance(value, type) or kind.__module__ in ("builtins", "functools")
    return value if is_itself else kind


_INNER: dict[type, str] = {staticmethod: "__func__", classmethod: "__func__", property: "fget"}
_INNER[functools._lru_cache_wrapper] = "__wrapped__"
# Of compiled functions, and of hints of types.
_BUILTIN = {"builtins", "typing", "typing_extensions", "types", "collections.abc"}


def _is_of_libraries(file: str) -> bool:
    return file.startswith((*_FOLDERS, "<frozen ")) or _is_of_python(file)


def _is_of_python(file: str) -> bool:
    inner = file.removeprefix(_PYTHON)
    return inner != file and not inner.startswith(("site-packages", "dist-packages", "unittest"))


_codes: dict[type, _Code] = {}


class ProcessorCall:
    """A call of a processor whose result may be known, or kept."""

    def __init__(
        self, processor: Any, images: Any, about: Any, key: Hashable, cores: Sequence[DeferredCore]
    ) -> None:
        self._processor, self._images, self._about = processor, images, about
        self._key, self._cores = key, cores
        form = type(images), *[core.mode for core in cores]
        self._of_sizes = key, form, tuple([core.size for core in cores])
        self._of_any_size = key, form, None

    @staticmethod
    def of(processor: Any, images: Any, *about: Any) -> ProcessorCall | None:
        """Returns a call with further arguments; ``None`` if its result cannot be kept."""
        kind, several = type(processor), images if type(images) in (list, tuple) else [images]
        if not (kind.__module__[:13] == "transformers." and issubclass(kind, TorchvisionBackend)):
            return None
        if torch._C._len_torch_function_stack() or torch.compiler.is_compiling():
            return None
        try:
            key = _key(processor, about)
        except Unknown:
            return None
        cores = [core for core in map(_find_core, several) if core is not None]
        if len(cores) < len(several) or len({id(core.source) for core in cores}) < len(cores):
            return None
        return ProcessorCall(processor, images, about, key, cores)

    def replay(self) -> Any:
        """Returns the result of images that are alike; ``PLAIN`` if there is none."""
        code = _codes.get(type(self._processor))
        for name in (self._of_any_size, self._of_sizes):
            make = None if code is None else code.makers.get(name)
            if code is None or make is None or not code.is_current():
                continue
            made = make(self._cores)
            if made is not PLAIN:
                code.known += 1
                return made
        return PLAIN

    def record(self, run: Callable[[Any], Any]) -> Any:
        """Returns ``run(images)``, with tensors that are not made yet, and keeps how they are."""
        kind, given = type(self._processor), self._images
        code = _codes.get(kind)
        if code is not None and code.recorded >= _FEW_CALLS + 2 * code.known:
            return run(given)
        if code is None or not code.is_current():
            code = _codes[kind] = _Code(kind, code)
        if not code.is_known:
            return run(given)
        code.recorded += 1
        before, reads.names = self._state(), set()
        several = type(given) in (list, tuple)
        made = run(type(given)(map(_watched, given)) if several else _watched(given))
        read = reads.names - _IGNORED
        remaking = _Remaking(self._cores)
        try:
            # Other threads may have changed the processor or the code since they were looked at.
            is_same = _key(self._processor, self._about) == self._key and code.is_current()
            if is_same and read <= _SIZES and self._state() == before:
                make = remaking.of(made)
                resized = remaking.only_size()
                if read or resized is None:
                    code.keep(self._of_sizes, make)
                else:
                    code.keep(self._of_any_size, _of_any_size(make, resized))
        except Unknown:
            pass
        return made

    def _state(self) -> tuple[Any, ...]:
        """Returns the state of what the code may use or change, if its result is not to be kept."""
        numbers = pickle.dumps(np.random.get_state(legacy=False))
        uses = [core.source.uses for core in self._cores]
        return random.getstate(), numbers, torch.get_rng_state().numpy().tobytes(), uses


def _key(processor: Any, about: Any) -> Hashable:
    """Returns what a result depends on, beside the code and the images.

    Raises:
        Unknown: it depends on more.
    """
    state = torch.get_default_dtype(), torch.is_inference_mode_enabled()
    return state, _frozen(about, -1), _frozen(vars(processor), -1)


def _of_any_size(make: Maker, resized: tuple[int, int]) -> Maker:
    """Returns ``make`` for one image of any size that is resized natively, else ``PLAIN``."""

    def make_resized(cores: Sequence[DeferredCore]) -> Any:
        size = cores[0].size
        return make(cores) if size != resized and min(size) > 1 else PLAIN

    return make_resized


def _find_core(image: Any) -> DeferredCore | None:
    """Returns the core of a deferred image, or of a file that is deferred without loading it."""
    if not isinstance(image, Image.Image) or type(image).__module__[:4] != "PIL.":
        return None
    attributes = image.__dict__
    if attributes["_im"] is None and not (UNPARSED in attributes and defer_unparsed(image)):
        return None
    return None if is_transparent(image) else deferred_core(image)


def _is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor has memory of its own, and little of it."""
    own = is_plain(tensor) and not tensor._is_view()
    return own and tensor.untyped_storage().nbytes() == tensor.nbytes <= _MOST_BYTES


class _Remaking:
    """How to make the same of other images."""

    def __init__(self, cores: Sequence[DeferredCore]) -> None:
        self._cores, self._seen = cores, set[int]()
        self._resized = set[tuple[int, int] | None]()

    def only_size(self) -> tuple[int, int] | None:
        """Returns the size that a single image is always resized to first, or ``None``."""
        is_one = len(self._cores) == len(self._resized) == 1
        return next(iter(self._resized)) if is_one else None

    def of(self, value: Any) -> Maker:
        """Returns a function that makes the same as ``value`` of other cores.

        Raises:
            Unknown: it is not known how.
        """
        kind = type(value)
        if kind in _VALUES or isinstance(value, enum.Enum):
            return lambda _: value
        if kind is tuple:
            return self._of_all(value, tuple)
        self._see(value)
        if kind is list:
            return self._of_all(value, list)
        if kind is dict:
            names, values = tuple(value), self._of_all(value.values(), list)
            return lambda cores: dict(zip(names, values(cores), strict=True))
        if kind is torch.Tensor and _is_small(value):
            copy = value.clone()
            return lambda _: copy.clone()
        if isinstance(value, UserDict) and kind.__module__.startswith("transformers."):
            attributes = self.of(vars(value))

            def make(cores: Sequence[DeferredCore]) -> Any:
                made = object.__new__(kind)
                vars(made).update(attributes(cores))
                return made

            return make
        stack = remaking(value, self._cores) if kind is ImageStack else None
        if stack is None:
            raise Unknown
        self._see(stack.memory)
        self._resized.add(stack.resized)
        return stack.make

    def _of_all(self, values: Iterable[Any], kind: type) -> Maker:
        makers = [self.of(value) for value in values]
        return lambda cores: kind([make(cores) for make in makers])

    def _see(self, value: object) -> None:
        if id(value) in self._seen:  # the copies would not be the same object
            raise Unknown
        self._seen.add(id(value))

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
import random
import sys
from collections import UserDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from types import FunctionType
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.image_utils import SizeDict

from fusionloader.data.deferred.composed.snapshots import Unknown
from fusionloader.data.deferred.core import DeferredCore, deferred_core
from fusionloader.data.deferred.guard import PLAIN
from fusionloader.data.deferred.image_stacks import ImageStack, Maker, reads, remaking
from fusionloader.data.deferred.rows.memory import is_plain
from fusionloader.data.deferred.unparsed import is_transparent

_MOST_CONFIGURATIONS, _MOST_SIZES = 64, 4096
_MOST_BYTES = 4096  # of a tensor that is kept
# Calls that are recorded in any case. It takes 0.25 ms more, and as much less if a result is known.
_FEW_CALLS = 64
_MOST_CHANGES = 16  # of code; detecting one takes milliseconds
_MOST_NESTED = 2  # annotations are nested deeper, and differ with each image
_VALUES = frozenset([type(None), bool, int, float, str, torch.dtype, torch.device])
# Modules whose functions are called, beside those in which the processors' classes are defined.
_MODULES = (
    *("transformers.image_transforms", "transformers.image_utils"),
    *("transformers.feature_extraction_utils", "huggingface_hub.dataclasses"),
    "torchvision.transforms.v2.functional",
    *(f"torchvision.transforms.v2.functional._{name}" for name in ("geometry", "misc", "utils")),
)
_LIBRARIES = {"transformers", "huggingface_hub", "torch", "torchvision", "numpy", "PIL"}
_LIBRARIES |= {"fusionloader", *sys.stdlib_module_names} - {"unittest"}


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
    """

    def __init__(self, kind: type) -> None:
        classes = kind.__mro__[:-1]
        modules = {*_MODULES, *(each.__module__ for each in classes)} & sys.modules.keys()
        self._scopes = [vars(each) for each in (*classes, *map(sys.modules.get, modules))]
        values = [value for scope in self._scopes for value in scope.values()]
        codes = [value.__code__ for value in values if isinstance(value, FunctionType)]
        names = {name for code in codes for name in code.co_names} & vars(torch).keys()
        self._of_torch = operator.itemgetter("cat", "stack", *names)
        self._then = self._now()
        self.is_known = all(map(_is_of_libraries, (*values, *self._then[-1])))

    def _now(self) -> list[Sequence[Any]]:
        return [*(list(scope.values()) for scope in self._scopes), self._of_torch(vars(torch))]

    def is_current(self) -> bool:
        try:
            return self._now() == self._then
        except Exception:  # raised by what was not there then, as by arrays, which have no truth
            return False


def _is_of_libraries(value: Any) -> bool:
    if not callable(value) and not hasattr(type(value), "__get__"):
        return True
    while not isinstance(value, (FunctionType, type)):
        if type(value).__module__ == "unittest.mock" or type(value) is functools.partial:
            return False
        names = ("__func__", "fget", "__wrapped__")
        inner = next((name for name in names if hasattr(type(value), name)), None)
        value = type(value) if inner is None else getattr(value, inner)
    where = value.__module__ if isinstance(value, type) else value.__globals__["__name__"]
    return str(where).partition(".")[0] in _LIBRARIES


class _Configuration:
    """What is known of calls that differ in nothing but the sizes of images.

    Attributes:
        code: the code that ran.
        recorded, known: calls that were recorded, and calls whose result was known.
    """

    def __init__(self, code: _Code) -> None:
        self.code, self.recorded, self.known = code, 0, 0
        self._makers: dict[Hashable, Maker] = {}
        self._of_any_size: tuple[Maker, tuple[int, int]] | None = None  # and their size afterwards

    def is_worth_it(self) -> bool:
        """Whether another call is to be recorded."""
        return self.code.is_known and self.recorded < _FEW_CALLS + 2 * self.known

    def find(self, sizes: Sequence[tuple[int, int]]) -> Maker | None:
        """Returns what makes the result of images of these sizes."""
        if self._of_any_size is not None:
            make, resized = self._of_any_size
            if sizes[0] != resized and min(sizes[0]) > 1:  # else nothing is resized, or torch fails
                return make
        return self._makers.get(sizes)

    def keep(self, remaking: _Remaking, make: Maker, sizes: Hashable, reads_sizes: bool) -> None:
        """Keeps what makes the result of images of these sizes, or of any one image."""
        (resized,) = remaking.resized if len(remaking.resized) == 1 else (None,)
        if not reads_sizes and resized is not None:
            self._of_any_size = make, resized
        elif len(self._makers) < _MOST_SIZES:
            self._makers[sizes] = make


_configurations: dict[Hashable, _Configuration] = {}
_changes = 0


class ProcessorCall:
    """A call of a processor whose result may be known, or kept."""

    def __init__(
        self, key: Hashable, processor: Any, images: Any, cores: Sequence[DeferredCore]
    ) -> None:
        self._key, self._processor, self._images, self._cores = key, processor, images, cores
        self._sizes = tuple([core.size for core in cores])

    @staticmethod
    def of(processor: Any, images: Any, *about: Any) -> ProcessorCall | None:
        """Returns a call with further arguments; ``None`` if its result cannot be kept."""
        kind, several = type(processor), images if type(images) in (list, tuple) else [images]
        if not kind.__module__.startswith("transformers.") or _changes >= _MOST_CHANGES:
            return None
        if torch._C._len_torch_function_stack() or torch.compiler.is_compiling():
            return None
        cores = [core for core in map(_find_core, several) if core is not None]
        if len(cores) < len(several) or len({id(core.source) for core in cores}) < len(cores):
            return None
        state = torch.get_default_dtype(), torch.is_inference_mode_enabled()
        modes = type(images), *[core.mode for core in cores]
        try:
            key = kind, state, modes, _frozen(about, -1), _frozen(vars(processor), -1)
        except Unknown:
            return None
        return ProcessorCall(key, processor, images, cores)

    def replay(self) -> Any:
        """Returns the result of images that are alike; ``PLAIN`` if there is none."""
        global _changes
        found = _configurations.get(self._key)
        if found is not None and not found.code.is_current():
            _configurations.clear()
            _changes += 1
            return PLAIN
        make = None if found is None else found.find(self._sizes)
        if found is None or make is None:
            return PLAIN
        found.known += 1
        return make(self._cores)

    def record(self, run: Callable[[Any], Any]) -> Any:
        """Returns ``run(images)``, with tensors that are not made yet, and keeps how they are."""
        found = _configurations.get(self._key)
        if found is None:
            if len(_configurations) >= _MOST_CONFIGURATIONS:
                _configurations.clear()
            found = _configurations[self._key] = _Configuration(_Code(type(self._processor)))
        if not found.is_worth_it():
            return run(self._images)
        before, reads.names = self._state(), set()
        given = self._images
        several = type(given) in (list, tuple)
        made = run(type(given)(map(_watched, given)) if several else _watched(given))
        read = reads.names - _IGNORED
        found.recorded += 1
        remaking = _Remaking(self._cores)
        try:
            if read <= _SIZES and self._state() == before:
                found.keep(remaking, remaking.of(made), self._sizes, bool(read))
        except Unknown:
            pass
        return made

    def _state(self) -> tuple[Any, ...]:
        """Returns the state of what the code may use or change, if its result is not to be kept."""
        numbers: Any = np.random.get_state()
        states = random.getstate(), numbers[1].tobytes(), numbers[2:]
        uses = [core.source.uses for core in self._cores]
        attributes = _frozen(vars(self._processor), -1)
        return *states, torch.get_rng_state().numpy().tobytes(), uses, attributes


def _find_core(image: Any) -> DeferredCore | None:
    if not isinstance(image, Image.Image) or type(image).__module__[:4] != "PIL.":
        return None
    return None if is_transparent(image) else deferred_core(image)


def _is_small(tensor: torch.Tensor) -> bool:
    """Whether a tensor has memory of its own, and little of it."""
    own = is_plain(tensor) and not tensor._is_view()
    return own and tensor.untyped_storage().nbytes() == tensor.nbytes <= _MOST_BYTES


class _Remaking:
    """How to make the same of other images.

    Attributes:
        resized: the sizes that images are resized to first; ``None`` of one that is not.
    """

    def __init__(self, cores: Sequence[DeferredCore]) -> None:
        self._cores, self._seen = cores, set[int]()
        self.resized: set[tuple[int, int] | None] = {None} if len(cores) > 1 else set()

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
        self.resized.add(stack.resized)
        return stack.make

    def _of_all(self, values: Iterable[Any], kind: type) -> Maker:
        makers = [self.of(value) for value in values]
        return lambda cores: kind([make(cores) for make in makers])

    def _see(self, value: object) -> None:
        if id(value) in self._seen:  # the copies would not be the same object
            raise Unknown
        self._seen.add(id(value))

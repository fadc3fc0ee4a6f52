"""Recognizes user code that only hands an image to transforms, or a sample on to them.

A method is run once with stand-ins: for the argument, for everything that it reads from its object,
and for what these return. Stand-ins record that they are called or indexed, and raise for any other
use. The method sees no global variables, and it may neither catch exceptions nor change an
attribute. So whether it takes another way can depend on the object's attributes alone, and it does
the same with any image.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import numpy as np
import torch
from PIL import Image

from fusionloader.transforms.plan.arguments import NotCompiled, Transform
from fusionloader.transforms.plan.patches import is_of_library

_CONSTANTS = frozenset((type(None), bool, int, float, str))
_LISTS = (list, tuple, range, np.ndarray)


def called_transforms(transform: Transform) -> list[Transform]:
    """Returns the transforms that a callable applies to its image, in order.

    It may be of a user's class, or torchvision's preset of a model's weights. Patches of it are not
    looked for.

    Raises:
        NotCompiled: it does anything else.
    """
    kind, name = type(transform), "__call__"
    if kind is _preset_class():
        if not _preset_is_known():
            raise NotCompiled("this torchvision's preset is not the one that is known")
        return _preset_steps(transform)
    if isinstance(transform, torch.nn.Module):
        if _in_class(kind, name) is not vars(torch.nn.Module)[name]:
            raise NotCompiled("it is a Module with a __call__ of its own")
        name = "forward"
    with _Run(transform) as run:
        run.image = _StandIn(run, "image")
        result = run.result_of(name, run.image)
        if result is not run.image or not run.called:
            raise NotCompiled(f"{name} does not return the transformed image")
        return run.called


def why_not_taken_apart(transform: Transform) -> str:
    """Returns why a transform that is not known stays in Python, and what could be done."""
    held = next((name for name, each in _attributes(transform).items() if _is_list(each)), None)
    if held is not None:
        try:
            called_transforms(transform)
        except NotCompiled as why:
            return f"{why}: give the Compose in its attribute {held} itself"
    return "not a transform that can be compiled"


def _is_list(value: Any) -> bool:
    from torchvision import transforms as v1
    from torchvision.transforms import v2

    return type(value) in (v1.Compose, v2.Compose, torch.nn.Sequential)


def _preset_class() -> Any:
    """Returns torchvision's class of ``weights.transforms()`` of models that classify images."""
    from torchvision.transforms import _presets

    return _presets.ImageClassification


def _preset_steps(preset: Transform) -> list[Transform]:
    from torchvision import transforms as v1

    return [
        v1.Resize(preset.resize_size, preset.interpolation, antialias=preset.antialias),
        v1.CenterCrop(preset.crop_size),
        v1.PILToTensor(),
        v1.ConvertImageDtype(torch.float),
        v1.Normalize(preset.mean, preset.std),
    ]


@functools.cache
def _preset_is_known() -> bool:
    """Whether the steps give what this version of torchvision gives for an image."""
    preset = _preset_class()(crop_size=12, resize_size=16)
    levels = np.arange(24 * 20 * 3).astype(np.uint8).reshape(24, 20, 3)
    image = Image.fromarray(levels)
    made: Any = image
    for step in _preset_steps(preset):
        made = step(made)
    return torch.equal(preset(image), made)


@dataclass(frozen=True, slots=True)
class Wrapped:
    """What the samples of a dataset are made of.

    Attributes:
        dataset: the dataset that each sample is read from.
        indices: sequence that the index into ``dataset`` is taken from; ``None`` if it is the same.
        transforms: transforms of the image, in order.
    """

    dataset: Any
    indices: Any
    transforms: tuple[Transform, ...]


def read_sample(dataset: Any) -> Wrapped:
    """Returns what a dataset's ``__getitem__`` reads, and the transforms that it then calls.

    It must return the tuple of the transformed image and the target, or the sample as it is.

    Raises:
        NotCompiled: it does anything else.
    """
    if callable(getattr(dataset, "__getitems__", None)):
        raise NotCompiled("its class has a custom __getitems__")
    with _Run(dataset) as run:
        run.index = _StandIn(run, "index")
        result = run.result_of("__getitem__", run.index)
        as_read = result is run.sample and not run.called
        is_pair = type(result) is tuple and len(result) == 2
        if run.sample is None or not (
            as_read or (is_pair and result[0] is run.image and result[1] is run.sample[1])
        ):
            raise NotCompiled("__getitem__ does not return the transformed image and its target")
        return Wrapped(run.dataset, run.indices, tuple(run.called))


@dataclass
class _Run:
    """One run of a method of ``owner`` with stand-ins, and what it has done with them."""

    owner: Any
    image: _StandIn | None = None
    index: _StandIn | None = None
    sample: tuple[_StandIn, _StandIn] | None = None
    dataset: Any = None
    indices: Any = None
    called: list[Transform] = field(default_factory=list)
    _known: dict[int, Any] = field(default_factory=dict)

    def __enter__(self) -> _Run:
        return self

    def __exit__(self, *_: object) -> None:
        vars(self).clear()  # stand-ins refer to it: the cycle would keep the dataset for a while

    def result_of(self, name: str, argument: _StandIn) -> Any:
        """Returns what a method returns for a stand-in."""
        function = _in_class(type(self.owner), name)
        if not isinstance(function, FunctionType) or is_of_library(function):
            raise NotCompiled(f"its {name} is no Python code of a user's class")
        code = function.__code__
        if code.co_freevars or any(isinstance(each, CodeType) for each in code.co_consts):
            raise NotCompiled(f"{name} uses super(), or contains functions")
        if _catches(code):
            raise NotCompiled(f"{name} catches exceptions")
        scope: dict[str, Any] = {"__builtins__": {}}
        try:
            result = FunctionType(code, scope)(_Owner(self), argument)
        except NotCompiled as why:
            raise NotCompiled(f"{name} {why}") from None
        except NameError as error:
            used = getattr(error, "name", None) or "a global variable"
            raise NotCompiled(f"{name} uses {used}") from None
        except Exception:
            raise NotCompiled(f"{name} does more than call transforms") from None
        if len(scope) > 1:
            raise NotCompiled(f"{name} sets a global variable")
        return result

    def attribute(self, name: str) -> Any:
        """Returns a constant, or the stand-in of another value."""
        kind = type(self.owner)
        if hasattr(type(_in_class(kind, name)), "__set__"):
            raise NotCompiled(f"uses the property {name}")
        if _in_class(kind, "__getattribute__") is not object.__getattribute__:
            raise NotCompiled("uses attributes of a class with a __getattribute__ of its own")
        found = _attributes(self.owner)
        if name not in found:
            raise NotCompiled(f"uses self.{name}, which is no attribute of the object")
        return self._stands_for(found[name])

    def _stands_for(self, value: Any) -> Any:
        if type(value) in _CONSTANTS:
            return value
        return self._known.setdefault(id(value), _StandIn(self, "attribute", value))

    def elements(self, value: Any) -> Iterator[Any]:
        if type(value) not in (list, tuple):
            raise NotCompiled("iterates over more than a list")
        return iter(list(map(self._stands_for, value)))

    def item(self, value: Any, index: Any) -> Any:
        """Records ``value[index]``, by which a sample, or the index of one, is read."""
        if index is not self.index or self.index is None or self.sample is not None:
            raise NotCompiled("reads more than one sample, or another one")
        if type(value) in _LISTS:
            if self.indices is not None:
                raise NotCompiled("takes its index from more than one list")
            self.indices = value
            self.index = _StandIn(self, "index")
            return self.index
        self.dataset = value
        self.image = _StandIn(self, "image")
        self.sample = self.image, _StandIn(self, "target")
        return self.sample

    def call(self, value: Transform, image: Any) -> Any:
        """Records ``value(image)``, where only the latest image may be transformed."""
        if image is not self.image:
            raise NotCompiled("calls a transform of something else than its image")
        self.called.append(value)
        self.image = _StandIn(self, "image")
        return self.image


def _catches(code: CodeType) -> bool:
    """Whether exceptions are handled in a function."""
    if hasattr(code, "co_exceptiontable"):  # Python 3.11
        return bool(code.co_exceptiontable)
    return any(each.opname.startswith("SETUP_") for each in dis.get_instructions(code))


def _in_class(kind: type, name: str) -> Any:
    """Returns what a class or a base of it defines by a name; ``None`` for nothing."""
    return next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)


def _is_cheap_to_test(value: Any) -> bool:
    """Whether ``bool(value)`` runs no code of the user, which may load something."""
    kind = type(value)
    methods = [_in_class(kind, name) for name in ("__bool__", "__len__")]
    known = kind in (*_LISTS, dict) or issubclass(kind, torch.nn.Module)
    return known or methods == [None, None]


def _attributes(owner: Any) -> dict[str, Any]:
    found = dict(getattr(owner, "__dict__", {}))
    if isinstance(owner, torch.nn.Module):
        found = {**owner._modules, **found}
    return found


def _state(stand_in: Any) -> tuple[Any, ...]:
    state: tuple[Any, ...] = object.__getattribute__(stand_in, "state")
    return state


def _refuses(*_: Any) -> Any:
    raise NotCompiled("uses its attributes otherwise than to call or index them")


class _Owner:
    """Stands for the object; has its attributes and no methods."""

    __slots__ = ("state",)

    def __init__(self, run: _Run) -> None:
        object.__setattr__(self, "state", (run,))

    def __getattribute__(self, name: str) -> Any:
        return _state(self)[0].attribute(name)

    __setattr__ = __delattr__ = _refuses
    __eq__ = __hash__ = __bool__ = __str__ = __repr__ = __format__ = _refuses


class _StandIn:
    """Stands for an attribute's value (``kind`` is ``"attribute"``), or for what came of one."""

    __slots__ = ("state",)

    def __init__(self, run: _Run, kind: str, value: Any = None) -> None:
        object.__setattr__(self, "state", (run, kind, value))

    def __getattribute__(self, name: str) -> Any:
        raise NotCompiled(f"uses {name} of its {_state(self)[1]}")

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        run, kind, value = _state(self)
        if kind != "attribute" or len(arguments) != 1 or named:
            _refuses()
        return run.call(value, arguments[0])

    def __getitem__(self, index: Any) -> Any:
        run, kind, value = _state(self)
        return run.item(value, index) if kind == "attribute" else _refuses()

    def __iter__(self) -> Iterator[Any]:
        run, kind, value = _state(self)
        elements: Iterator[Any] = run.elements(value) if kind == "attribute" else _refuses()
        return elements

    def __bool__(self) -> bool:
        _, kind, value = _state(self)
        if kind != "attribute" or not _is_cheap_to_test(value):
            _refuses()
        return bool(value)

    __setattr__ = __delattr__ = _refuses
    __eq__ = __hash__ = __str__ = __repr__ = __format__ = _refuses

"""Whether a library's classes, functions and objects were patched by the program."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

_LIBRARIES = ("torch", "torchvision", "timm", "fusionloader")
# Those methods of every torch module that take part in a call.
_OF_MODULES = ("__call__", "_call_impl", "_wrapped_call_impl")
# Attribute of functions that this package puts in place of others: the original.
REPLACED = "__fusionloader_replaced__"
_DESCRIPTORS = (staticmethod, classmethod)


def is_patched(step: object) -> bool:
    """Whether a transform has forward hooks, or methods replaced on it or on its class."""
    attributes = getattr(step, "__dict__", {})
    hooked = any(attributes.get(name) for name in ("_forward_hooks", "_forward_pre_hooks"))
    replaced = any(_is_method(type(step), name) for name in attributes)
    return hooked or replaced or _has_patches(type(step))


def is_defined_by(function: object, owner: type | ModuleType) -> bool:
    """Whether a function was defined in the package of a class or module."""
    function = getattr(function, REPLACED, function)
    name = owner.__module__ if isinstance(owner, type) else owner.__name__
    scope = getattr(function, "__globals__", {})
    where = scope.get("__name__", "")
    return _package(where) == _package(name) and scope is vars(sys.modules[where])


def find_open(image: ModuleType) -> tuple[Any, str]:
    """Returns an owner of Pillow's ``Image.open``, and its name there.

    If a program has replaced it by a function that calls Pillow's, as ultralytics does, it is the
    global variable of that function. So the function stays, and opens images as before.
    """
    scope = getattr(image.open, "__globals__", {})
    if scope is not vars(image):
        for name, value in scope.items():
            function = getattr(value, REPLACED, value)
            is_pillows = getattr(function, "__globals__", None) is vars(image)
            if is_pillows and function.__name__ == "open":
                return scope, name
    return image, "open"


def why_not_pillow() -> str:
    """Returns which function that opens images is not Pillow's; ``""`` if all are."""
    from PIL import Image

    if find_open(Image)[0] is Image and not is_defined_by(Image.open, Image):
        return "the program has replaced PIL.Image.open"
    if not is_defined_by(Image.Image.convert, Image):
        return "the program has replaced PIL.Image.Image.convert"
    return ""


def is_of_library(function: FunctionType) -> bool:
    """Whether a function was defined in one of the libraries whose classes are known here."""
    return _package(function.__globals__.get("__name__", "")) in _LIBRARIES


def _package(module: str) -> str:
    return module.partition(".")[0]


def _is_method(kind: type, name: str) -> bool:
    found = inspect.getattr_static(kind, name, None)
    return isinstance(found, (FunctionType, *_DESCRIPTORS))


def _has_patches(kind: type) -> bool:
    """Whether a method of a class of ``_LIBRARIES`` was defined outside of that library."""
    if _package(kind.__module__) not in _LIBRARIES:
        return False
    return any(not is_defined_by(function, owner) for owner, function in _methods(kind))


def _methods(kind: type) -> Iterator[tuple[type, object]]:
    import torch

    for owner in kind.__mro__[:-1]:
        of_modules = owner is torch.nn.Module
        for name, value in vars(owner).items():
            if name not in _OF_MODULES and (of_modules or name.startswith("__")):
                continue
            if isinstance(value, _DESCRIPTORS):
                value = value.__func__
            if callable(value) and not isinstance(value, type):
                yield owner, value

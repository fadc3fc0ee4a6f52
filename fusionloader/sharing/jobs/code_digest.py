"""Digests of datasets and functions of users, equal in all processes that run the same code.

A pickle names classes and functions, but does not contain them, and depends on which of its parts
are the same object. A digest contains the byte code of what is not an installed package, with the
constants that it uses, and is that of the values alone.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import pickle
import sys
import sysconfig
from collections.abc import Iterator
from types import (
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any

import torch

_CONSTANTS = (int, float, complex, str, bytes, bool, type(None), tuple, frozenset)
_OF_CLASS = frozenset(
    ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__annotate_func__")
    + ("__firstlineno__", "__static_attributes__", "__abstractmethods__", "_abc_impl")
)
_OF_SLOTS = MemberDescriptorType, GetSetDescriptorType
_CACHED = type(functools.lru_cache(lambda: None))
_INSTALLED = "site-packages", "dist-packages"
_BUILT_IN = "<built in>"


def digest_code(*values: Any) -> str:
    """Returns a digest of values and of the user's code in them, as hexadecimal digits.

    Global variables that functions use count, too.

    Raises:
        TypeError: a value cannot be pickled, or refers to itself.
    """
    digest = _Digest()
    try:
        digest.dump(values)
    except (MemoryError, OSError):  # not of what is digested
        raise
    except Exception as error:
        raise TypeError(str(error) or type(error).__name__) from error
    return digest.hashed.hexdigest()


class _Hashed(io.RawIOBase):
    """A file of which the digest is kept alone."""

    def __init__(self) -> None:
        self.digest = hashlib.blake2b(digest_size=8)

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return len(data)


class _Digest(pickle.Pickler):
    """Writes what the digest depends on."""

    def __init__(self) -> None:
        stream = _Hashed()
        super().__init__(stream, protocol=4)
        self.fast = True  # without a memo: the same bytes for equal objects and for the same one
        self.hashed = stream.digest
        self._seen: set[int] = set()  # functions and classes that are written
        self._kept: list[Any] = []  # so that no other object gets the address of one

    def persistent_id(self, value: Any) -> Any:
        """Replaces sets, whose order depends on the process."""
        if type(value) in (set, frozenset):
            return "set", sorted(digest_code(each) for each in value)
        return None

    def reducer_override(self, value: Any) -> Any:
        if value is _write:
            return NotImplemented
        if isinstance(value, ModuleType):
            return _write, ("module", value.__name__)
        if isinstance(value, (FunctionType, type)):
            return self._reduce_code(value)
        if isinstance(value, (torch.Tensor, torch.UntypedStorage)):
            return _write, tuple(_tensor_parts(value))
        if isinstance(value, torch.Generator):
            return _write, ("generator", value.get_state().numpy().tobytes())
        if isinstance(value, (staticmethod, classmethod)):
            return _write, (type(value).__name__, value.__func__)
        if isinstance(value, property):
            return _write, ("property", value.fget, value.fset, value.fdel)
        if isinstance(value, functools.cached_property):
            return _write, ("property", value.func)
        if isinstance(value, functools.partialmethod):
            return _write, ("partial", value.func, value.args, value.keywords)
        if isinstance(value, _CACHED):
            return _write, ("function", value.__wrapped__)
        return NotImplemented

    def _reduce_code(self, value: Any) -> Any:
        name = value.__module__, value.__qualname__
        if id(value) in self._seen or _is_installed(value):
            return _write, ("name", *name)
        self._seen.add(id(value))
        self._kept.append(value)
        parts = _function_parts(value) if isinstance(value, FunctionType) else _class_parts(value)
        return _write, ("code", *name, *parts)


def _write(*parts: Any) -> None:
    """Stands before the parts of an object in a digest."""


def _tensor_parts(value: torch.Tensor | torch.UntypedStorage) -> Iterator[Any]:
    yield type(value)
    if isinstance(value, torch.Tensor):
        yield from (str(value.dtype), tuple(value.shape), value.requires_grad)
        yield sorted(vars(value).items())
        plain = value.detach().as_subclass(torch.Tensor)
        value = plain.cpu().contiguous().flatten().view(torch.uint8)
    else:
        storage: Any = value
        value = torch.empty(0, dtype=torch.uint8).set_(storage.cpu())
    yield value.numpy().tobytes()


def _class_parts(value: type) -> Iterator[Any]:
    yield value.__bases__
    for name, part in vars(value).items():
        if name not in _OF_CLASS and not isinstance(part, _OF_SLOTS):
            yield name, part


def _function_parts(function: FunctionType) -> Iterator[Any]:
    yield from (function.__defaults__, function.__kwdefaults__)
    if function.__closure__:
        yield tuple(cell.cell_contents for cell in function.__closure__ if not _is_empty(cell))
    for code in _codes(function.__code__):
        yield code.co_code, code.co_names, code.co_varnames
        yield tuple(each for each in code.co_consts if not isinstance(each, CodeType))
        for name in code.co_names:
            used = function.__globals__.get(name)
            if isinstance(used, ModuleType):
                yield name, used.__name__
                if not _is_installed_module(used):
                    yield [(each, vars(used).get(each)) for each in code.co_names]
            elif used is not None and name != "__class__":
                yield name, used


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return True
    return False


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yields a function's code, and that of the functions in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)


def _is_installed(value: Any) -> bool:
    """Whether a function or class is of an installed package or of Python, and has a name there."""
    module = sys.modules.get(value.__module__)
    if isinstance(value, FunctionType):
        if module is None or not _is_installed_module(module):
            return False  # though an installed decorator may have made it of the user's function
        path = value.__code__.co_filename
    elif module is None or value.__module__ == "__main__":
        return False
    else:
        path = getattr(module, "__file__", None) or _BUILT_IN
    return _is_installed_path(str(value.__module__), path) and "<" not in value.__qualname__


def _is_installed_module(module: ModuleType) -> bool:
    return _is_installed_path(module.__name__, getattr(module, "__file__", None) or _BUILT_IN)


def _is_installed_path(name: str, path: str) -> bool:
    if name.partition(".")[0] == "fusionloader" or any(each in path for each in _INSTALLED):
        return True
    return path == _BUILT_IN or path.startswith(sysconfig.get_paths()["stdlib"] + os.sep)

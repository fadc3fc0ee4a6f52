"""What has to be equal in processes whose workers make samples for each other.

A pickle names classes and functions, but does not contain them, and depends on which equal numbers
and texts in it are the same object. A digest of user code contains the byte code of what is not an
installed package, with the constants that it uses, and depends on the values of what is immutable.
"""

from __future__ import annotations

import bisect
import ctypes
import functools
import hashlib
import io
import os
import pickle
import sys
import sysconfig
from collections.abc import Collection, Iterator
from types import (
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any

import PIL
from PIL import Image, ImageFile

_BY_VALUE = frozenset((int, float, complex, str, bytes, bool, slice, tuple, type(None), type(...)))
_OF_CLASS = frozenset(
    ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__annotate_func__")
    + ("__annotations_cache__", "__firstlineno__", "__static_attributes__")
    + ("__abstractmethods__", "_abc_impl")
)
_OF_SLOTS = MemberDescriptorType, GetSetDescriptorType
_CACHED = type(functools.lru_cache(lambda: None))
_INSTALLED = "site-packages", "dist-packages"
_BUILT_IN = "<built in>"


def pillow_settings() -> tuple[str, bool, int | None]:
    """Returns Pillow's version and the settings that change or refuse pixels."""
    return PIL.__version__, ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS


def digest_repr(value: object, nbytes: int) -> str:
    """Returns a digest of the ``repr`` of a value, as hexadecimal digits.

    Pickles of equal values may differ, because they depend on which parts are the same object.
    """
    return hashlib.blake2b(repr(value).encode(), digest_size=nbytes).hexdigest()


class CodeTooLong(TypeError):
    """The pickles of values have more bytes than they may have."""


def digest_code(
    *values: Any,
    most_bytes: int = sys.maxsize,
    own_memory: Collection[str] = (),
    with_files: bool = False,
) -> str:
    """Returns a digest of values and of the user's code in them, as hexadecimal digits.

    Global variables that functions use count, too. What ``__getstate__`` leaves out does not.

    Args:
        values: datasets and functions.
        most_bytes: maximum number of bytes to read.
        own_memory: ``"numpy"`` or ``"torch"``, or both, if its arrays or tensors must not lie in
            shared memory or mapped files, which may change; then no tensor may be on a device.
        with_files: whether classes and functions have to come from files of the same path.

    Raises:
        CodeTooLong: there are more than ``most_bytes``.
        TypeError: a value cannot be pickled, or its memory may change.
    """
    digest = _Digest(most_bytes, _mapped_memory() if own_memory else [], own_memory, with_files)
    try:
        digest.dump(values)
    except (MemoryError, OSError, CodeTooLong):  # not of what is digested
        raise
    except Exception as error:
        raise TypeError(str(error) or type(error).__name__) from error
    return digest.stream.hashed.hexdigest()


class _Stream(io.RawIOBase):
    """A file of which the digest is kept alone."""

    def __init__(self, most_bytes: int) -> None:
        self.hashed, self.left = hashlib.blake2b(digest_size=16), most_bytes

    def writable(self) -> bool:
        return True

    def take(self, nbytes: int) -> None:
        self.left -= nbytes
        if self.left < 0:
            raise CodeTooLong

    def write(self, data: Any) -> int:
        with memoryview(data) as view:
            self.take(view.nbytes)
            self.hashed.update(view)
            return view.nbytes


class _Digest(pickle.Pickler):
    """Writes what the digest depends on, in the same way in all processes."""

    def __init__(
        self,
        most_bytes: int,
        mapped: list[tuple[int, int]],
        own_memory: Collection[str],
        with_files: bool,
    ) -> None:
        self.stream = _Stream(most_bytes)
        super().__init__(self.stream, pickle.HIGHEST_PROTOCOL)
        self.fast = True  # without a memo: the same bytes for equal objects and for the same one
        self._mapped, self._own_memory, self._with_files = mapped, own_memory, with_files
        # Of what may refer to itself. It is held, so that no other object gets its address.
        self._numbers: dict[int, tuple[int, Any]] = {}

    def persistent_id(self, value: Any) -> Any:
        """Replaces what is written already, and sets, whose order depends on the process."""
        kind = type(value)
        if kind in _BY_VALUE:
            return None
        if kind is set or kind is frozenset:
            return "set", sorted(map(self._digest_alone, value))
        known = self._numbers.get(id(value))
        if known is not None:
            return "written", known[0]
        self._numbers[id(value)] = len(self._numbers), value
        return None

    def _digest_alone(self, value: Any) -> str:
        alone = _Digest(self.stream.left, self._mapped, self._own_memory, self._with_files)
        alone.dump(value)
        self.stream.left = alone.stream.left
        return alone.stream.hashed.hexdigest()

    def reducer_override(self, value: Any) -> Any:
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if value is _write:
            return NotImplemented
        if isinstance(value, ModuleType):
            return _write, ("module", value.__name__)
        if isinstance(value, (FunctionType, type)):
            return self._reduce_code(value)
        if isinstance(value, MappingProxyType):  # which fields of data classes have
            return _write, ("mapping", dict(value))
        if value is os.environ:
            return _write, ("environment",)
        if numpy is not None and isinstance(value, numpy.ndarray) and value.nbytes:
            if value.nbytes > self.stream.left:  # numpy would copy an array with gaps first
                raise CodeTooLong
            self._check_address("numpy", value.__array_interface__["data"][0])
        if torch is not None and isinstance(value, torch.storage.TypedStorage):
            return _write, (type(value), str(value.dtype), value._untyped_storage)
        if torch is not None and isinstance(value, torch.UntypedStorage):
            return _write, (type(value), self._digest_memory(value))
        if torch is not None and isinstance(value, torch.Generator):
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

    def _digest_memory(self, storage: Any) -> bytes:
        if storage.device.type != "cpu":
            if self._own_memory:
                raise pickle.PicklingError("a tensor on a device")
            storage = storage.cpu()
        nbytes = storage.nbytes()
        if not nbytes:
            return b""
        self._check_address("torch", storage.data_ptr())
        self.stream.take(nbytes)
        memory = (ctypes.c_char * nbytes).from_address(storage.data_ptr())
        return hashlib.blake2b(memory).digest()

    def _check_address(self, library: str, address: int) -> None:
        """Raises PicklingError for memory that other processes may change."""
        if library not in self._own_memory:
            return
        place = bisect.bisect_right(self._mapped, (address, sys.maxsize)) - 1
        if place >= 0 and address < self._mapped[place][1]:
            raise pickle.PicklingError("a tensor or array is in shared memory or a mapped file")

    def _reduce_code(self, value: Any) -> Any:
        name = [value.__module__, value.__qualname__]
        if self._with_files:
            file = getattr(sys.modules.get(value.__module__), "__file__", None)
            name.append(os.path.realpath(file or ""))
        if _is_installed(value):
            return _write, ("name", *name)
        parts = _function_parts(value) if isinstance(value, FunctionType) else _class_parts(value)
        return _write, ("code", *name, *parts)


def _mapped_memory() -> list[tuple[int, int]]:
    """Returns begin and end of the mappings of files and shared memory, by address."""
    found = []
    with open("/proc/self/maps") as mappings:
        for mapping in mappings:
            addresses, _, _, _, inode = mapping.split(maxsplit=5)[:5]
            if inode != "0":
                begin, end = addresses.split("-")
                found.append((int(begin, 16), int(end, 16)))
    return found


def _write(*parts: Any) -> None:
    """Stands before the parts of an object in a digest."""


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
        yield code.co_code, getattr(code, "co_exceptiontable", b"")  # Python 3.11
        yield code.co_names, code.co_varnames
        yield code.co_flags, code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount
        yield tuple(each for each in code.co_consts if not isinstance(each, CodeType))
        for name in code.co_names:
            used = function.__globals__.get(name)
            if isinstance(used, ModuleType):
                yield name, *_module_parts(used, code.co_names)
            elif used is not None and name != "__class__":
                yield name, used


def _module_parts(module: ModuleType, names: tuple[str, ...]) -> Iterator[Any]:
    """Yields a module's name, and what a user's module and modules in it have of these names."""
    waiting, seen = [module], {module}
    while waiting:
        found = waiting.pop()
        yield found.__name__
        if _is_installed_module(found):
            continue
        for name in names:
            part = vars(found).get(name)
            if not isinstance(part, ModuleType):
                yield name, part
            elif part not in seen:
                seen.add(part)
                waiting.append(part)


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
        path = _path(module)
    return _is_installed_path(str(value.__module__), path) and "<" not in value.__qualname__


def _is_installed_module(module: ModuleType) -> bool:
    return _is_installed_path(module.__name__, _path(module))


def _path(module: ModuleType) -> str:
    """Returns the file or folder of a module, or of its package; none if a program has made it."""
    for path in (getattr(module, "__file__", None), *getattr(module, "__path__", ())):
        if path:
            return str(path)
    top = module.__name__.partition(".")[0]
    if top in sys.stdlib_module_names:
        return _BUILT_IN
    package = sys.modules.get(top, module)
    return "" if package is module else _path(package)


def _is_installed_path(name: str, path: str) -> bool:
    if name.partition(".")[0] == "fusionloader" or any(each in path for each in _INSTALLED):
        return True
    return path == _BUILT_IN or path.startswith(sysconfig.get_paths()["stdlib"] + os.sep)

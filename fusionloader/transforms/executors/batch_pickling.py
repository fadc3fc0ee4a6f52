"""Pickles batches without the memory of their arrays and tensors, which is sent apart."""

from __future__ import annotations

import contextlib
import ctypes
import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch.multiprocessing import reductions

from fusionloader.options.aliases import Batch

SMALLEST_BYTES = 4096  # less is faster to send than to map

PlacedValue: TypeAlias = "tuple[int | bytes, int, Any, tuple[int, ...], tuple[int, ...] | None]"
"""A value's offset in a slot, or its bytes; number of bytes; dtype, shape and stride.

Arrays have no stride, storages neither stride nor dtype. Storages are sent for tensors that are
not plain, or that share memory. A long pickle is the last value.
"""


class FoundMemory(NamedTuple):
    """Memory of ``values``, which is a tensor, an array or a storage; see ``PlacedValue``."""

    values: Any
    address: int
    nbytes: int
    dtype: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None


# Address and number of bytes: two storages over an array may begin at the same address.
_Memory: TypeAlias = tuple[int, int]


def pickle_apart(batch: Batch, alone: bool = False) -> tuple[bytes, list[FoundMemory]]:
    """Returns the pickle of a batch, and the memory that is not in it.

    With ``alone`` the process that unpickles it is no relative, to which torch could send memory.
    """
    shared: set[_Memory] = set()
    while True:  # once more if memory turned out to be shared; it ends, as ``shared`` only grows
        stream = io.BytesIO()
        pickler = _Pickler(stream, shared, alone)
        pickler.dump(batch)
        if not pickler.found_shared:
            return stream.getvalue(), pickler.found


class _Pickler(ForkingPickler):
    """Pickles tensors, arrays and storages as numbers of the entries of ``found``.

    Args:
        stream: stream to write to.
        shared: memory shared by several tensors, which must share it after unpickling. If more is
            found, it is added and ``found_shared`` is set: the batch must be pickled once more.
        alone: whether torch's own shared memory is copied like any other.
    """

    def __init__(self, stream: io.BytesIO, shared: set[_Memory], alone: bool) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self.found: list[FoundMemory] = []
        self.found_shared = False
        self._shared, self._alone = shared, alone
        self._numbers: dict[_Memory, int] = {}

    def reducer_override(self, value: Any) -> Any:
        """Returns the reduction of a value with memory, ``NotImplemented`` for any other."""
        kind = type(value)
        if kind == torch.Tensor:  # deferred ones have an equal type
            if kind is not torch.Tensor:
                value.data_ptr()  # makes it a plain tensor
            return self._reduced_tensor(value)
        if kind is torch.UntypedStorage:
            return self._reduced_storage(value)
        if kind is np.ndarray:
            if not _is_usual(value):  # becomes so, as on the way from torch's workers
                return value.__reduce_ex__(pickle.DEFAULT_PROTOCOL)
            if _is_alone(value):
                about = value.nbytes, value.dtype, value.shape, None
                self.found.append(FoundMemory(value, value.ctypes.data, *about))
                return _value, (len(self.found) - 1,)
        return NotImplemented

    def _reduced_tensor(self, tensor: torch.Tensor) -> Any:
        if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.requires_grad:
            return NotImplemented
        if tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg():
            return NotImplemented
        storage, dtype = tensor.untyped_storage(), tensor.dtype
        shape, stride, nbytes = tuple(tensor.shape), tensor.stride(), storage.nbytes()
        memory = storage.data_ptr(), nbytes
        is_whole = nbytes == tensor.nbytes and not tensor.storage_offset()
        if is_whole and memory not in self._shared:
            if memory not in self._numbers:
                return self._number(FoundMemory(tensor, *memory, dtype, shape, stride))
            self._shared.add(memory)
            self.found_shared = True
        return _make_view, (storage, dtype, tensor.storage_offset(), shape, stride)

    def _reduced_storage(self, storage: torch.UntypedStorage) -> Any:
        memory = storage.data_ptr(), storage.nbytes()
        if memory in self._numbers:
            if memory not in self._shared:
                self._shared.add(memory)
                self.found_shared = True
            return _value, (self._numbers[memory],)
        if storage.device.type == "cpu":
            if storage.is_shared() and not self._alone:
                with contextlib.suppress(OSError, RuntimeError):  # where too many files are open
                    reduce: Any = reductions.reduce_storage
                    return reduce(storage)
            self._shared.add(memory)
            return self._number(FoundMemory(storage, *memory, None, (), None))
        return NotImplemented

    def _number(self, found: FoundMemory) -> Any:
        number = len(self.found)
        self.found.append(found)
        if found.nbytes:
            self._numbers[found.address, found.nbytes] = number
        return _value, (number,)


def _is_usual(array: np.ndarray[Any, Any]) -> bool:
    flags = array.flags
    return flags.c_contiguous and flags.writeable and array.dtype.isnative


def _is_alone(array: np.ndarray[Any, Any]) -> bool:
    return array.base is None and not array.dtype.hasobject and array.nbytes >= SMALLEST_BYTES


def by_value(found: FoundMemory) -> PlacedValue:
    return (ctypes.string_at(found.address, found.nbytes) if found.nbytes else b"", *found[2:])


def _value(number: int) -> Any:
    """Stands in pickles for a value, which ``BatchUnpickler`` looks up."""
    raise AssertionError(number)


def _make_view(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device="cpu").set_(storage, offset, shape, stride)


class BatchUnpickler(pickle.Unpickler):
    """Unpickles what ``pickle_apart`` has pickled; ``values`` are those that are not in it."""

    def __init__(self, stream: io.BytesIO, values: list[Any]) -> None:
        super().__init__(stream)
        self._values = values

    def find_class(self, module: str, name: str) -> Any:
        if name == _value.__name__ and module == __name__:
            return self._values.__getitem__
        return super().find_class(module, name)


def made_value(
    owner: Any,
    where: int | bytes,
    nbytes: int,
    dtype: Any,
    shape: tuple[int, ...],
    stride: tuple[int, ...] | None,
) -> Any:
    if isinstance(where, bytes):
        owner, where = bytearray(where), 0
    if dtype is not None and stride is None:
        flat: Any = np.frombuffer(memoryview(owner).cast("B"), np.uint8, nbytes, where)
        return flat.view(dtype).reshape(shape)
    if not nbytes:
        made = torch.empty(0, dtype=dtype or torch.uint8, device="cpu")
    elif dtype is None:
        made = torch.frombuffer(owner, dtype=torch.uint8, count=nbytes, offset=where)
    else:
        made = torch.frombuffer(owner, dtype=dtype, count=nbytes // dtype.itemsize, offset=where)
    if stride is None:
        return made.untyped_storage()
    return made.as_strided(shape, stride)

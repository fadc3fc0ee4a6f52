"""Whole batches on their way from a worker: pickled, but for the memory of arrays and tensors.

That lies in a slot which the worker uses again and again, where torch would share fresh memory for
every tensor of every batch. What is small, or no plain tensor or array, goes torch's way.
"""

from __future__ import annotations

import io
import os
import pickle
import weakref
from multiprocessing import reduction
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch

from fusionloader.aliases import Batch
from fusionloader.shm.batch_slots import BatchSlots, Owner, WorkersSlots

_SMALLEST = 4096  # bytes; less is pickled faster than it is mapped
_ALIGN = 64


class _Placed(NamedTuple):
    """Where an array or tensor lies in a slot, and what it is; arrays have no ``stride``."""

    offset: int
    nbytes: int
    dtype: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None


# Address, bytes, type, and strides of a tensor.
_Description = tuple[int, int, Any, "tuple[int, ...] | None"]


class _SharedStorage(Exception):
    """Two tensors of a batch look into the same memory: torch keeps that so."""


class _Open:
    """A slot that a batch is being collated into."""

    def __init__(self, slot: Any) -> None:
        self.slot = slot
        self.owner = slot.bytes()
        self.memory = np.frombuffer(self.owner, np.uint8)
        self.begin = self.memory.ctypes.data
        self.used = 0

    def take(self, nbytes: int) -> int | None:
        """Returns the offset of so many bytes, ``None`` where there is no room for them."""
        offset = self.used
        if offset + nbytes > self.slot.nbytes:
            return None
        self.used = offset + -(-nbytes // _ALIGN) * _ALIGN
        return offset

    def offset_of(self, address: int) -> int | None:
        """Returns where in the slot an address is, if it is there."""
        offset = address - self.begin
        return offset if 0 <= offset < self.slot.nbytes else None


class Sender:
    """A worker's end."""

    def __init__(self, token: int, most: int) -> None:
        """``token`` names the receiver; ``most`` batches are in flight or looked at, at most."""
        self._token = token
        self._slots = BatchSlots(most)
        self._open: _Open | None = None
        self._most_bytes = 0  # of a batch, so far

    def collate_into_slots(self) -> None:
        """Gives ``default_collate`` memory of slots, where it would take fresh shared memory."""
        original: Any = torch.UntypedStorage._new_shared

        def new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
            made = self._storage(size) if torch.device(device).type == "cpu" else None
            return original(size, device=device) if made is None else made

        replaced: Any = classmethod(new_shared)
        torch.UntypedStorage._new_shared = replaced  # type: ignore[method-assign]

    def _storage(self, nbytes: int) -> torch.UntypedStorage | None:
        if nbytes < _SMALLEST:
            return None
        if self._open is None:
            slot = self._slots.acquire(max(self._most_bytes, nbytes))
            if slot is None:
                return None
            self._open = _Open(slot)
        offset = self._open.take(nbytes)
        if offset is None:
            return None
        owner = self._open.owner
        flat = torch.frombuffer(owner, dtype=torch.uint8, count=nbytes, offset=offset)
        return flat.untyped_storage()

    def pack(self, batch: Batch) -> Batch:
        """Returns what unpickles to the batch in the training process."""
        opened, self._open = self._open, None
        stream = io.BytesIO()
        pickler = _Pickler(stream)
        try:
            pickler.dump(batch)
        except _SharedStorage:
            return batch
        if not pickler.found:
            return batch
        found = self._place(pickler, opened) or self._place(pickler, self._fresh(pickler.nbytes))
        if found is None:
            return batch
        placed, slot = found
        slot.set_free(False)
        where = (os.getpid(), slot.number, slot.nbytes, self._slots.numbers)
        return _Packed(self._token, where, self._slots.take_fd(slot), placed, stream.getvalue())

    def _fresh(self, nbytes: int) -> _Open | None:
        self._most_bytes = max(self._most_bytes, nbytes)
        slot = self._slots.acquire(self._most_bytes)
        return None if slot is None else _Open(slot)

    def _place(self, pickler: _Pickler, opened: _Open | None) -> tuple[list[_Placed], Any] | None:
        """Copies into a slot what is not there yet; ``None`` where it has no room for that."""
        if opened is None:
            return None
        self._most_bytes = max(self._most_bytes, pickler.nbytes)
        placed = []
        for values, (address, nbytes, dtype, stride) in pickler.found:
            offset = opened.offset_of(address)
            if offset is None:
                offset = opened.take(nbytes)
                if offset is None:
                    return None
                opened.memory[offset : offset + nbytes] = _bytes_of(values)
            placed.append(_Placed(offset, nbytes, dtype, tuple(values.shape), stride))
        return placed, opened.slot


class _Packed:
    """A batch in a slot; pickled, it is the batch."""

    def __init__(self, token: int, where: Any, fd: int | None, placed: Any, pickled: bytes) -> None:
        self._contents = token, where, placed, pickled
        self._fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        fd = None
        if self._fd is not None:
            fd = reduction.DupFd(self._fd)  # which duplicates it now
            os.close(self._fd)
        return _unpack, (*self._contents, fd)


class Receiver:
    """The training process's end; ``token`` names it to workers."""

    def __init__(self) -> None:
        self.slots = WorkersSlots()
        self.token = id(self)
        _receivers[self.token] = self


_receivers: weakref.WeakValueDictionary[int, Receiver] = weakref.WeakValueDictionary()


def _unpack(token: int, where: Any, placed: list[_Placed], pickled: bytes, fd: Any) -> Batch:
    receiver = _receivers.get(token)
    if receiver is None:  # its iterator has ended
        return None
    worker, number, nbytes, numbers = where
    descriptor = None if fd is None else fd.detach()
    try:
        owner = receiver.slots.lease(worker, number, nbytes, descriptor, numbers)
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return _Unpickler(io.BytesIO(pickled), [_made(owner, each) for each in placed]).load()


class _Pickler(ForkingPickler):
    """Pickles a batch, and sets aside what is to lie in a slot."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self.found: list[tuple[Any, _Description]] = []
        self.nbytes = 0
        self._numbers: dict[int, int] = {}  # by id(); `found` keeps the objects
        self._storages: set[int] = set()

    def persistent_id(self, value: Any) -> int | None:
        """Returns the number of what is set aside."""
        kind = type(value)
        if kind is not torch.Tensor and kind is not np.ndarray:
            return None
        known = self._numbers.get(id(value))
        if known is not None:
            return known
        described = _describe_tensor(value) if kind is torch.Tensor else _describe_array(value)
        if described is None:
            return None
        address, nbytes, *_ = described
        if address in self._storages:
            raise _SharedStorage
        self._storages.add(address)
        self.nbytes += -(-nbytes // _ALIGN) * _ALIGN
        self._numbers[id(value)] = len(self.found)
        self.found.append((value, described))
        return self._numbers[id(value)]


def _describe_tensor(tensor: torch.Tensor) -> _Description | None:
    """Returns address, bytes, type and strides of a tensor that is all of its storage."""
    if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.requires_grad:
        return None
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return None
    storage = tensor.untyped_storage()
    if storage.data_ptr() in (0, None):
        return None
    nbytes = tensor.numel() * tensor.element_size()
    if storage.nbytes() != nbytes:
        raise _SharedStorage  # it may be, at least
    if nbytes < _SMALLEST:
        return None
    return storage.data_ptr(), nbytes, tensor.dtype, tensor.stride()


def _describe_array(array: Any) -> _Description | None:
    plain = array.flags.c_contiguous and not array.dtype.hasobject
    if not plain or array.nbytes < _SMALLEST or array.base is not None:
        return None
    return array.ctypes.data, array.nbytes, array.dtype, None


def _bytes_of(values: Any) -> Any:
    if isinstance(values, torch.Tensor):
        flat = torch.empty(0, dtype=torch.uint8).set_(values.untyped_storage())
        return flat.numpy()
    return values.reshape(-1).view(np.uint8)


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, values: list[Any]) -> None:
        super().__init__(stream)
        self._values = values

    def persistent_load(self, number: int) -> Any:
        return self._values[number]


def _made(owner: Owner, placed: _Placed) -> Any:
    offset, nbytes, dtype, shape, stride = placed
    if stride is None:
        flat: Any = np.frombuffer(memoryview(owner).cast("B"), np.uint8, nbytes, offset)
        return flat.view(dtype).reshape(shape)
    elements = nbytes // dtype.itemsize
    tensor = torch.frombuffer(owner, dtype=dtype, count=elements, offset=offset)
    return tensor.as_strided(shape, stride)

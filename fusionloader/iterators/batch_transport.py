"""Whole batches on their way from a worker: pickled, but for the memory of arrays and tensors.

That lies in a slot which the worker uses again and again, where torch would share fresh memory for
every tensor of every batch. What is small, or no plain tensor or array, goes torch's way, in memory
of ``workers/torch_storages.py``.
"""

from __future__ import annotations

import ctypes
import io
import os
import pickle
import weakref
from collections import Counter
from multiprocessing import reduction
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch

from fusionloader.aliases import Batch
from fusionloader.shm.batch_slots import BatchSlots, Owner, WorkersSlots

_SMALLEST = 4096  # bytes; less is pickled faster than it is mapped
_ALIGN = 64
_LEFT_FOR_COPIES = 3  # slots


class _Placed(NamedTuple):
    """Where an array or tensor lies in a slot, and what it is; arrays have no ``stride``."""

    offset: int
    nbytes: int
    dtype: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None


class _Found(NamedTuple):
    """An array or tensor of a batch, and its memory."""

    values: Any
    address: int
    nbytes: int
    stride: tuple[int, ...] | None


class OpenSlot:
    """A slot that a batch is being made in.

    Attributes:
        owner: gives its bytes; ``None`` while nothing but the batch is to keep the slot in use.
        begin: its address.
    """

    def __init__(self, slot: Any) -> None:
        self.slot = slot
        self.owner: Owner | None = slot.bytes()
        self._of_batch = weakref.ref(self.owner)
        self.begin = ctypes.addressof(self.owner)
        self._used = 0

    def release(self) -> None:
        """Leaves the slot to what has been made in it."""
        self.owner = None

    def is_looked_into(self) -> bool:
        """Whether something that was made in it is still there."""
        return self._of_batch() is not None

    def reopen(self) -> bool:
        """Keeps it for more to be made in it; returns whether it is still there."""
        self.owner = self._of_batch()
        return self.owner is not None

    def take(self, nbytes: int) -> int | None:
        """Returns the offset of so many bytes, ``None`` where there is no room for them."""
        offset = self._used
        if offset + nbytes > self.slot.nbytes:
            return None
        self._used = offset + -(-nbytes // _ALIGN) * _ALIGN
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
        self._open: OpenSlot | None = None  # where tensors are collated now
        self._most = most
        self._unsent: list[OpenSlot] = []  # where batches are that may be sent
        self._sent: list[OpenSlot] = []  # those whose batches are still looked into here
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
            self._open = self._acquired(nbytes)
            if self._open is None:
                return None
        offset = self._open.take(nbytes)
        if offset is None:
            return None
        owner = self._open.owner
        flat = torch.frombuffer(owner, dtype=torch.uint8, count=nbytes, offset=offset)
        return flat.untyped_storage()

    def open(self, nbytes: int) -> OpenSlot | None:
        """Returns a slot for a batch of so many bytes; ``None`` where there is none.

        Some are left for what is copied, however many a dataset keeps of the batches that it made.
        """
        self._sent = [each for each in self._sent if each.is_looked_into()]
        if nbytes < _SMALLEST or len(self._sent) > self._most - _LEFT_FOR_COPIES:
            return None
        return self._acquired(nbytes)

    def use(self, opened: OpenSlot) -> None:
        """Says that a batch lies in a slot; what is collated now goes there, too."""
        if self._open is not opened:
            if self._open is not None:
                self._open.release()
            self._open = opened
            self._unsent.append(opened)

    def pack(self, batch: Batch) -> Batch:
        """Returns what unpickles to the batch in the training process."""
        opened, self._open = self._open, None
        if opened in self._unsent:  # another batch may be what lies there
            opened = None
        found = _found_in(batch)
        self._unsent = [each for each in self._unsent if each.reopen()]
        try:
            return self._packed(batch, found, self._made_in(found) or opened)
        finally:
            for each in (*self._unsent, *self._sent):
                each.release()

    def _made_in(self, found: list[_Found]) -> OpenSlot | None:
        """Returns the slot that the largest part of a batch was made in.

        It is sent with one batch only: the training process frees it when that one is gone.
        """
        if not found:
            return None
        address = max(found, key=lambda each: each.nbytes).address
        of_batch = [each for each in self._unsent if each.offset_of(address) is not None]
        for each in of_batch:
            self._unsent.remove(each)
            self._sent.append(each)
        return next(iter(of_batch), None)

    def _packed(self, batch: Batch, found: list[_Found], opened: OpenSlot | None) -> Batch:
        if not found:
            return batch
        placed = self._place(found, opened) or self._place(found, self._fresh(found))
        if placed is None:
            return batch
        where, slot = placed
        pickled = _pickled(batch, found)
        slot.set_free(False)
        about = (os.getpid(), slot.number, slot.nbytes, self._slots.numbers)
        return _Packed(self._token, about, self._slots.take_fd(slot), where, pickled)

    def _fresh(self, found: list[_Found]) -> OpenSlot | None:
        nbytes = sum(-(-each.nbytes // _ALIGN) * _ALIGN for each in found)
        self._most_bytes = max(self._most_bytes, nbytes)
        return self._acquired(nbytes)

    def _acquired(self, nbytes: int) -> OpenSlot | None:
        slot = self._slots.acquire(max(self._most_bytes, nbytes))
        return None if slot is None else OpenSlot(slot)

    def _place(
        self, found: list[_Found], opened: OpenSlot | None
    ) -> tuple[list[_Placed], Any] | None:
        """Copies into a slot what is not there yet; ``None`` where it has no room for that."""
        if opened is None:
            return None
        placed = []
        memory = np.frombuffer(opened.owner, np.uint8)  # type: ignore[call-overload]
        for each in found:
            offset = opened.offset_of(each.address)
            if offset is None:
                offset = opened.take(each.nbytes)
                if offset is None:
                    return None
                memory[offset : offset + each.nbytes] = _bytes_of(each.values)
            shape = tuple(each.values.shape)
            placed.append(_Placed(offset, each.nbytes, each.values.dtype, shape, each.stride))
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


class _Looker(pickle.Pickler):
    """Finds the arrays and tensors of a batch, and reduces none of them: that may open files."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), pickle.HIGHEST_PROTOCOL)
        self.found: dict[int, Any] = {}  # by id(), in order

    def persistent_id(self, value: Any) -> int | None:
        """Notes what has memory of its own."""
        kinds = (torch.Tensor, np.ndarray, torch.UntypedStorage, torch.TypedStorage)
        if not isinstance(value, kinds):
            return None
        self.found[id(value)] = value
        return 0


def _found_in(batch: Batch) -> list[_Found]:
    """Returns what of a batch can lie in a slot: nothing that shares its memory."""
    looker = _Looker()
    try:
        looker.dump(batch)
    except Exception:  # torch says what is wrong
        return []
    values = list(looker.found.values())
    users = Counter(map(_memory_of, values))
    plain = [each for each in values if users[_memory_of(each)] == 1]
    return [each for each in map(_described, plain) if each is not None]


def _memory_of(value: Any) -> int:
    """Returns the address of the memory that a value looks into, or a number of its own."""
    try:
        if isinstance(value, torch.Tensor):
            return value.untyped_storage().data_ptr() or id(value)
        if isinstance(value, np.ndarray):
            while isinstance(value.base, np.ndarray):
                value = value.base
            return value.ctypes.data or id(value)
        return value.data_ptr() or id(value)
    except (RuntimeError, NotImplementedError):  # a tensor without storage
        return id(value)


def _described(value: Any) -> _Found | None:
    if type(value) is torch.Tensor:
        return _described_tensor(value)
    if type(value) is not np.ndarray or not value.flags.c_contiguous or value.dtype.hasobject:
        return None
    if value.nbytes < _SMALLEST or value.base is not None or not value.flags.writeable:
        return None
    return _Found(value, value.ctypes.data, value.nbytes, None)


def _described_tensor(tensor: torch.Tensor) -> _Found | None:
    """Returns a tensor that is all of its storage, ``None`` for others."""
    if tensor.layout is not torch.strided or not tensor.is_cpu or tensor.requires_grad:
        return None
    if tensor.is_quantized or tensor.is_conj() or tensor.is_neg():
        return None
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes < _SMALLEST or tensor.storage_offset() or tensor.untyped_storage().nbytes() != nbytes:
        return None
    return _Found(tensor, tensor.data_ptr(), nbytes, tensor.stride())


def _pickled(batch: Batch, found: list[_Found]) -> bytes:
    """Returns the batch pickled, but for what lies in a slot."""
    numbers = {id(each.values): number for number, each in enumerate(found)}
    stream = io.BytesIO()

    class Pickler(ForkingPickler):
        def persistent_id(self, value: Any) -> int | None:
            return numbers.get(id(value))

    Pickler(stream, pickle.HIGHEST_PROTOCOL).dump(batch)
    return stream.getvalue()


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

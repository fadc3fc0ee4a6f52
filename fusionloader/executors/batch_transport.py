"""Whole batches on their way from a worker: pickled, but for the memory of arrays and tensors.

That lies in a slot which the worker uses again and again, where torch would share fresh memory for
every tensor of every batch. What is small, or finds no slot, is sent by value. Neither opens a
file, so a worker or a training process that may open no more loses no batch.

A batch is pickled in the worker's own thread, which can report an error. A queue's thread would
drop the batch, and training would wait for it for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import pickle
import weakref
from collections import Counter
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.multiprocessing import reductions

from fusionloader.aliases import Batch
from fusionloader.shm.batch_slots import BatchSlots, Owner, WorkersSlots, memory_of
from fusionloader.shm.descriptor import Descriptor

_SMALLEST = 4096  # bytes; less is pickled faster than it is mapped
_LONG_PICKLE = 1 << 16  # bytes; more does not fit into a pipe
_ALIGN = 64
_UNPICKLING = "while the training process unpickled a batch"
_LEFT_FOR_COPIES = 3  # slots


class Sends(NamedTuple):
    """What a worker sends batches by.

    Attributes:
        token: names the receiver.
        memory: the object that its slots are in.
        most: of batches in flight or looked at.
    """

    token: int
    memory: Descriptor
    most: int


class _Placed(NamedTuple):
    """Where values lie in a slot, and what they are; arrays have no ``stride``, storages no more.

    A storage is what tensors that are no plain ones, or share their memory, look into. A long
    pickle is the last one.
    """

    offset: int
    nbytes: int
    dtype: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None


class _Found(NamedTuple):
    """An array, a tensor or a storage of a batch, and its memory."""

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

    def __init__(self, sends: Sends) -> None:
        self._sends = sends
        self._slots = BatchSlots(sends.memory.fd, sends.most)
        self._memory = memory_of(sends.memory.fd)
        self._open: OpenSlot | None = None  # where tensors are collated now
        self._unsent: list[OpenSlot] = []  # where batches are that may be sent
        self._sent: list[OpenSlot] = []  # those whose batches are still looked into here
        self._most_bytes = 0  # of a batch, so far

    @contextlib.contextmanager
    def collating(self) -> Iterator[None]:
        """Gives ``default_collate`` memory of slots, where it would take fresh shared memory."""
        original: Any = torch.UntypedStorage._new_shared  # inherited

        def new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
            if torch.device(device).type != "cpu":
                return original(size, device=device)
            made = self._storage(size)
            return torch.UntypedStorage(size) if made is None else made  # type: ignore[no-untyped-call]

        replaced: Any = classmethod(new_shared)
        torch.UntypedStorage._new_shared = replaced  # type: ignore[method-assign]
        try:
            yield
        finally:
            del torch.UntypedStorage._new_shared

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
        if nbytes < _SMALLEST or len(self._sent) > self._sends.most - _LEFT_FOR_COPIES:
            return None
        return self._acquired(nbytes)

    def use(self, opened: OpenSlot) -> None:
        """Says that a batch lies in a slot; what is collated now goes there, too."""
        if self._open is not opened:
            if self._open is not None:
                self._open.release()
            self._open = opened
            self._unsent.append(opened)

    def pack(self, batch: Batch) -> Packed:
        """Returns what unpickles to the batch in the training process.

        Raises:
            Exception: the batch cannot be pickled.
        """
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

    def _packed(self, batch: Batch, found: list[_Found], opened: OpenSlot | None) -> Packed:
        pickled = _pickled(batch, found)
        if len(pickled) >= _LONG_PICKLE:  # behind the values, and the last of them
            found = [*found, _Found(pickled, 0, len(pickled), None)]
        where = self._place(found, opened) or self._place(found, self._fresh(found))
        if where is None:
            if found:
                pickled = _pickled(batch, [])
            return Packed(self._sends.token, None, [], pickled)
        placed, slot = where
        slot.set_free(False)
        about = (self._memory, slot.offset, slot.size, self._slots.offsets)
        in_slot = len(pickled) >= _LONG_PICKLE
        return Packed(self._sends.token, about, placed, None if in_slot else pickled)

    def _fresh(self, found: list[_Found]) -> OpenSlot | None:
        if not found:
            return None
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
            offset = opened.offset_of(each.address) if each.address else None
            if offset is None:
                offset = opened.take(each.nbytes)
                if offset is None:
                    return None
                memory[offset : offset + each.nbytes] = _bytes_of(each.values)
            if isinstance(each.values, (torch.UntypedStorage, bytes)):
                placed.append(_Placed(offset, each.nbytes, None, (), None))
                continue
            shape = tuple(each.values.shape)
            placed.append(_Placed(offset, each.nbytes, each.values.dtype, shape, each.stride))
        return placed, opened.slot


class Packed(NamedTuple):
    """A batch on its way; unpickled, it is the batch, or torch's wrapper of the error.

    Attributes:
        token: names the receiver.
        where: the memory of its slot, the slot's place and size there, and the places of the
            worker's other slots; ``None`` where all of the batch is pickled.
        placed: values in the slot.
        pickled: what remains, ``None`` where that lies in the slot, too.
    """

    token: int
    where: tuple[int, int, int, list[int]] | None
    placed: list[_Placed]
    pickled: bytes | None

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, tuple(self)

    def pickled_apart(self) -> bytes:
        """Returns what ``unpickled`` makes this of again, and not the batch."""
        return pickle.dumps(tuple(self), pickle.HIGHEST_PROTOCOL)


def unpickled(packed: bytes) -> Packed:
    """Returns a batch on its way."""
    return Packed(*pickle.loads(packed))


class Receiver:
    """The training process's end; ``token`` names it to workers."""

    def __init__(self) -> None:
        self._slots = WorkersSlots()
        self._token = next(_tokens)
        _receivers[self._token] = self

    def add_worker(self, most: int) -> Sends:
        """Returns what one more worker sends by, at most so many batches at a time.

        Raises:
            OSError: there are too many open files.
        """
        return Sends(self._token, Descriptor(self._slots.add_worker()), most)

    def lease(self, packed: Packed) -> Owner | None:
        """Returns the bytes of a batch's slot, which is free when nothing refers to them.

        Raises:
            OSError: they cannot be mapped.
        """
        return None if packed.where is None else self._slots.lease(*packed.where)

    def drop(self, packed: Packed) -> None:
        """Frees the slot of a batch that is not wanted."""
        if packed.where is not None:
            self._slots.free(*packed.where[:2])

    @staticmethod
    def batch(packed: Packed, owner: Owner | None) -> Batch:
        """Returns a batch, whose slot's bytes are leased."""
        placed, pickled = packed.placed, packed.pickled
        if pickled is None:
            assert owner is not None
            *placed, last = placed
            pickled = bytes(memoryview(owner).cast("B")[last.offset : last.offset + last.nbytes])
        values = [_made(owner, each) for each in placed]
        return _Unpickler(io.BytesIO(pickled), values).load()


_tokens = itertools.count()
_receivers: weakref.WeakValueDictionary[int, Receiver] = weakref.WeakValueDictionary()


def _unpack(*contents: Any) -> Batch:
    packed = Packed(*contents)
    receiver = _receivers.get(packed.token)
    if receiver is None:  # its iterator has ended
        return None
    try:
        owner = receiver.lease(packed)
    except OSError:
        receiver.drop(packed)
        return ExceptionWrapper(where=_UNPICKLING)  # type: ignore[no-untyped-call]
    try:
        return receiver.batch(packed, owner)
    except Exception:  # of this batch, whose number torch would not learn
        return ExceptionWrapper(where=_UNPICKLING)  # type: ignore[no-untyped-call]


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
    plain = [_described(each) if users[_memory_of(each)] == 1 else None for each in values]
    found = [each for each in plain if each is not None]
    others = [value for value, each in zip(values, plain, strict=True) if each is None]
    storages = {each.address: each for each in map(_described_storage, others) if each is not None}
    return [*found, *storages.values()]


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


def _described_storage(value: Any) -> _Found | None:
    """Returns the memory of a tensor that is sent with it; memory that is shared stays torch's."""
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
        return None
    try:
        storage = value.untyped_storage()
    except (RuntimeError, NotImplementedError):  # a tensor without one
        return None
    if not _is_own(storage) or storage.nbytes() < _SMALLEST:
        return None
    return _Found(storage, storage.data_ptr(), storage.nbytes(), None)


def _is_own(storage: torch.UntypedStorage) -> bool:
    return storage.device.type == "cpu" and storage.nbytes() > 0 and not storage.is_shared()


def _pickled(batch: Batch, found: list[_Found]) -> bytes:
    """Returns the batch pickled, but for what lies in a slot."""
    numbers = {_key(each.values): number for number, each in enumerate(found)}
    stream = io.BytesIO()

    class Pickler(ForkingPickler):
        def persistent_id(self, value: Any) -> int | None:
            return numbers.get(_key(value))

    pickler = Pickler(stream, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table[torch.UntypedStorage] = _reduced  # a copy of its class's
    pickler.dump(batch)
    return stream.getvalue()


def _key(value: Any) -> Any:
    # Of one storage there may be several objects.
    return ("storage", value._cdata) if type(value) is torch.UntypedStorage else id(value)


def _reduced(storage: torch.UntypedStorage) -> Any:
    if not _is_own(storage):
        try:
            reduce: Any = reductions.reduce_storage
            return reduce(storage)
        except (OSError, RuntimeError):  # too many open files
            if storage.device.type != "cpu" or not storage.nbytes():
                raise
    return _storage_of, (bytearray(_bytes_of(storage)),)


def _storage_of(values: bytearray) -> torch.UntypedStorage:
    return torch.frombuffer(values, dtype=torch.uint8).untyped_storage()


def _bytes_of(values: Any) -> Any:
    if isinstance(values, bytes):
        return np.frombuffer(values, np.uint8)
    if isinstance(values, torch.Tensor):
        values = values.untyped_storage()
    if isinstance(values, torch.UntypedStorage):
        return torch.empty(0, dtype=torch.uint8).set_(values).numpy()
    return values.reshape(-1).view(np.uint8)


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, values: list[Any]) -> None:
        super().__init__(stream)
        self._values = values

    def persistent_load(self, number: int) -> Any:
        return self._values[number]


def _made(owner: Any, placed: _Placed) -> Any:
    offset, nbytes, dtype, shape, stride = placed
    if dtype is None:
        memory = torch.frombuffer(owner, dtype=torch.uint8, count=nbytes, offset=offset)
        return memory.untyped_storage()
    if stride is None:
        flat: Any = np.frombuffer(memoryview(owner).cast("B"), np.uint8, nbytes, offset)
        return flat.view(dtype).reshape(shape)
    elements = nbytes // dtype.itemsize
    tensor = torch.frombuffer(owner, dtype=dtype, count=elements, offset=offset)
    return tensor.as_strided(shape, stride)

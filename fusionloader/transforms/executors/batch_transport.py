"""Sends whole batches from a worker: pickled, except for the memory of arrays and tensors.

That memory lies in a slot, which the worker uses again and again; torch would share fresh memory
for every tensor of every batch. Small memory, and memory for which there is no slot, is sent beside
the pickle. Neither opens a file, so that no batch is lost where the limit of open files is reached.

A batch is pickled in the worker's own thread, which can report an error. A queue's thread would
drop the batch, and training would wait for it forever.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import pickle
import weakref
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.multiprocessing import reductions

from fusionloader.options.aliases import Batch
from fusionloader.system.shm.batch_slots import BatchSlots, Owner, WorkersSlots, identify_object
from fusionloader.system.shm.descriptor import Descriptor

_SMALLEST = 4096  # bytes; sending less is faster than mapping it
_LONG_PICKLE = 1 << 16  # bytes; more does not fit into a pipe
_ALIGN = 64
_UNPICKLING = "while the training process unpickled a batch"
_LEFT_FOR_COPIES = 3  # slots that are kept free for batches that have to be copied


class Sends(NamedTuple):
    """A worker's means of sending batches.

    Attributes:
        token: number of the receiver.
        memory: shared memory that the worker's slots are in.
        most: maximum number of batches in flight or in use.
    """

    token: int
    memory: Descriptor
    most: int


_Placed: TypeAlias = "tuple[int | bytes, int, Any, tuple[int, ...], tuple[int, ...] | None]"
"""A value's offset in a slot, or its bytes; number of bytes; dtype, shape and stride.

Arrays have no stride, storages neither stride nor dtype. Storages are sent for tensors that are
not plain, or that share memory. A long pickle is the last value.
"""


class _Found(NamedTuple):
    """Memory of ``values``, which is a tensor, an array or a storage; see ``_Placed``."""

    values: Any
    address: int
    nbytes: int
    dtype: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None


class OpenSlot:
    """A slot that a batch is made in.

    Attributes:
        owner: buffer over the slot's bytes, which keeps the slot in use; ``None`` after
            ``release``, when only the batch keeps it in use.
        begin: address of the slot.
    """

    def __init__(self, slot: Any) -> None:
        self.slot = slot
        self.owner: Owner | None = slot.bytes()
        self._of_batch = weakref.ref(self.owner)
        self.begin = ctypes.addressof(self.owner)
        self._used = 0

    def release(self) -> None:
        """Drops the owner: the slot is free when the values in it are gone."""
        self.owner = None

    def is_in_use(self) -> bool:
        """Whether a value in the slot still exists."""
        return self._of_batch() is not None

    def reopen(self) -> bool:
        """Takes the owner again, if a value still refers to it; returns whether one does."""
        self.owner = self._of_batch()
        return self.owner is not None

    def take(self, nbytes: int) -> int | None:
        """Allocates ``nbytes`` and returns their offset, ``None`` if they do not fit."""
        offset = self._used
        if offset + nbytes > self.slot.nbytes:
            return None
        self._used = offset + -(-nbytes // _ALIGN) * _ALIGN
        return offset

    def find_offset(self, address: int) -> int | None:
        """Returns the offset of an address in the slot, ``None`` if it is outside."""
        offset = address - self.begin
        return offset if 0 <= offset < self.slot.nbytes else None


class Sender:
    """The worker's end."""

    def __init__(self, sends: Sends) -> None:
        self._sends = sends
        self._slots = BatchSlots(sends.memory.fd, sends.most)
        self._memory = identify_object(sends.memory.fd)
        self._open: OpenSlot | None = None  # slot that tensors are collated into now
        self._unsent: list[OpenSlot] = []  # slots with batches that may be sent
        self._sent: list[OpenSlot] = []  # slots of sent batches that this process still uses
        self._most_bytes = 0  # of the largest batch so far

    @contextlib.contextmanager
    def collating(self) -> Iterator[None]:
        """Makes ``default_collate`` use memory of slots instead of fresh shared memory."""
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
        """Returns a slot for a batch of ``nbytes``, ``None`` if there is none.

        Some slots are left for copies, even if a dataset keeps all batches that it makes.
        """
        self._sent = [each for each in self._sent if each.is_in_use()]
        if nbytes < _SMALLEST or len(self._sent) > self._sends.most - _LEFT_FOR_COPIES:
            return None
        return self._acquired(nbytes)

    def use(self, opened: OpenSlot) -> None:
        """Registers that a batch lies in a slot; ``default_collate`` uses that slot, too."""
        if self._open is not opened:
            if self._open is not None:
                self._open.release()
            self._open = opened
            self._unsent.append(opened)

    def pack(self, batch: Batch) -> Packed:
        """Returns an object that unpickles to the batch in the training process.

        Raises:
            Exception: the batch cannot be pickled.
        """
        opened, self._open = self._open, None
        if opened in self._unsent:  # it may contain another batch
            opened = None
        pickled, found = _pickled(batch)
        self._unsent = [each for each in self._unsent if each.reopen()]
        try:
            return self._packed(pickled, found, opened)
        finally:
            for each in (*self._unsent, *self._sent):
                each.release()

    def _packed(self, pickled: bytes, found: list[_Found], opened: OpenSlot | None) -> Packed:
        large = [each for each in found if each.nbytes >= _SMALLEST]
        opened = self._made_in(large) or opened
        in_slot = len(pickled) >= _LONG_PICKLE
        if in_slot:  # placed behind the values, as the last of them
            large.append(_Found(pickled, 0, len(pickled), None, (), None))
        where = self._place(large, opened) or self._place(large, self._fresh(large))
        if where is None:
            placed = [_by_value(each) for each in found]
            return Packed(self._sends.token, None, placed, pickled)
        offsets, slot = where
        places = iter(offsets)
        placed = [
            (next(places), *each[2:]) if each.nbytes >= _SMALLEST else _by_value(each)
            for each in found
        ]
        if in_slot:
            placed.append((next(places), *large[-1][2:]))
        slot.set_free(False)  # until the training process frees it
        about = (self._memory, slot.offset, slot.size, self._slots.offsets)
        return Packed(self._sends.token, about, placed, None if in_slot else pickled)

    def _made_in(self, found: list[_Found]) -> OpenSlot | None:
        """Returns the slot that the largest value of a batch was made in, ``None`` if in none.

        A slot is sent with one batch only: the training process frees it when that batch is gone.
        """
        if not found:
            return None
        address = max(found, key=lambda each: each.nbytes).address
        of_batch = [each for each in self._unsent if each.find_offset(address) is not None]
        for each in of_batch:
            self._unsent.remove(each)
            self._sent.append(each)
        return next(iter(of_batch), None)

    def _fresh(self, found: list[_Found]) -> OpenSlot | None:
        if not found:
            return None
        nbytes = sum(-(-each.nbytes // _ALIGN) * _ALIGN for each in found)
        self._most_bytes = max(self._most_bytes, nbytes)
        return self._acquired(nbytes)

    def _acquired(self, nbytes: int) -> OpenSlot | None:
        slot = self._slots.acquire(max(self._most_bytes, nbytes))
        return None if slot is None else OpenSlot(slot)

    def _place(self, found: list[_Found], opened: OpenSlot | None) -> tuple[list[int], Any] | None:
        """Copies values that are not in the slot into it, and returns the offsets of all.

        ``None`` if the slot is too small.
        """
        if opened is None or not found:
            return None
        offsets = []
        for each in found:
            offset = opened.find_offset(each.address) if each.address else None
            if offset is None:
                offset = opened.take(each.nbytes)
                if offset is None:
                    return None
                source: Any = each.values if each.address == 0 else each.address
                ctypes.memmove(opened.begin + offset, source, each.nbytes)
            offsets.append(offset)
        return offsets, opened.slot


class Packed(NamedTuple):
    """A batch to be sent; it unpickles to the batch, or to torch's wrapper of the error.

    Attributes:
        token: number of the receiver.
        where: number of the memory of its slot, offset and size of the slot in it, and offsets of
            the worker's other slots; ``None`` if the batch has no slot.
        placed: values in the slot, or their bytes.
        pickled: pickle of the rest; ``None`` if it lies in the slot, too.
    """

    token: int
    where: tuple[int, int, int, list[int]] | None
    placed: list[_Placed]
    pickled: bytes | None

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, tuple(self)

    def pickled_apart(self) -> bytes:
        """Returns a pickle that ``unpickled`` turns into this object, not into the batch."""
        return pickle.dumps(tuple(self), pickle.HIGHEST_PROTOCOL)


def unpickled(packed: bytes) -> Packed:
    return Packed(*pickle.loads(packed))


class BatchReceiver:
    """The training process's end.

    Attributes:
        slots: slots of all workers.
    """

    def __init__(self) -> None:
        self.slots = WorkersSlots()
        self._token = next(_tokens)
        _receivers[self._token] = self

    def add_worker(self, most: int) -> Sends:
        """Returns the means of one more worker to send at most ``most`` batches at a time.

        Raises:
            OSError: too many files are open.
        """
        return Sends(self._token, Descriptor(self.slots.add_worker()), most)

    def lease(self, packed: Packed) -> Owner | None:
        """Returns the bytes of a batch's slot, which is freed when nothing refers to them.

        Raises:
            OSError: the slot cannot be mapped.
        """
        return None if packed.where is None else self.slots.lease(*packed.where)

    def drop(self, packed: Packed) -> None:
        """Frees the slot of a batch that is not needed."""
        if packed.where is not None:
            self.slots.free(*packed.where[:2])

    @staticmethod
    def batch(packed: Packed, owner: Owner | None) -> Batch:
        """Returns the batch; ``owner`` has the leased bytes of its slot, if it has one."""
        placed, pickled = packed.placed, packed.pickled
        if pickled is None:
            assert owner is not None
            *placed, last = placed
            begin: Any = last[0]
            pickled = ctypes.string_at(ctypes.addressof(owner) + begin, last[1])
        values = [_made(owner, *each) for each in placed]
        return _Unpickler(io.BytesIO(pickled), values).load()


def sent_by_value(batch: Batch) -> Batch:
    """Returns a copy of a small batch, made as that of a worker is, without a slot."""
    pickled, found = _pickled(batch)
    return BatchReceiver.batch(Packed(-1, None, list(map(_by_value, found)), pickled), None)


_tokens = itertools.count()
_receivers: weakref.WeakValueDictionary[int, BatchReceiver] = weakref.WeakValueDictionary()


def _unpack(*contents: Any) -> Batch:
    packed = Packed(*contents)
    receiver = _receivers.get(packed.token)
    if receiver is None:  # the iterator of the batch has ended
        return None
    try:
        owner = receiver.lease(packed)
    except OSError:
        receiver.drop(packed)
        return ExceptionWrapper(where=_UNPICKLING)  # type: ignore[no-untyped-call]
    try:
        return receiver.batch(packed, owner)
    except Exception:  # raised here, torch would not know the number of the batch
        return ExceptionWrapper(where=_UNPICKLING)  # type: ignore[no-untyped-call]


# Address and number of bytes: two storages over an array may begin at the same address.
_Memory: TypeAlias = tuple[int, int]


def _pickled(batch: Batch) -> tuple[bytes, list[_Found]]:
    """Returns the pickle of a batch, and the memory that is not in it."""
    shared: set[_Memory] = set()
    while True:  # once more if memory turned out to be shared; it ends, as ``shared`` only grows
        stream = io.BytesIO()
        pickler = _Pickler(stream, shared)
        pickler.dump(batch)
        if not pickler.found_shared:
            return stream.getvalue(), pickler.found


class _Pickler(ForkingPickler):
    """Pickles tensors, arrays and storages as numbers of the entries of ``found``.

    Args:
        stream: stream to write to.
        shared: memory shared by several tensors, which must share it after unpickling. If more is
            found, it is added and ``found_shared`` is set: the batch must be pickled once more.
    """

    def __init__(self, stream: io.BytesIO, shared: set[_Memory]) -> None:
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self.found: list[_Found] = []
        self.found_shared = False
        self._shared = shared
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
        if kind is np.ndarray and _is_plain_array(value):
            about = value.nbytes, value.dtype, value.shape, None
            self.found.append(_Found(value, value.ctypes.data, *about))
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
                return self._number(_Found(tensor, *memory, dtype, shape, stride))
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
            if storage.is_shared():
                with contextlib.suppress(OSError, RuntimeError):  # where too many files are open
                    reduce: Any = reductions.reduce_storage
                    return reduce(storage)
            self._shared.add(memory)
            return self._number(_Found(storage, *memory, None, (), None))
        return NotImplemented

    def _number(self, found: _Found) -> Any:
        number = len(self.found)
        self.found.append(found)
        if found.nbytes:
            self._numbers[found.address, found.nbytes] = number
        return _value, (number,)


def _is_plain_array(array: np.ndarray[Any, Any]) -> bool:
    if not array.flags.c_contiguous or array.dtype.hasobject or array.nbytes < _SMALLEST:
        return False
    return array.base is None and array.flags.writeable


def _by_value(found: _Found) -> _Placed:
    return (ctypes.string_at(found.address, found.nbytes) if found.nbytes else b"", *found[2:])


def _value(number: int) -> Any:
    """Stands in pickles for a value, which ``_Unpickler`` looks up."""
    raise AssertionError(number)


def _make_view(
    storage: torch.UntypedStorage,
    dtype: torch.dtype,
    offset: int,
    shape: tuple[int, ...],
    stride: tuple[int, ...],
) -> torch.Tensor:
    return torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, values: list[Any]) -> None:
        super().__init__(stream)
        self._values = values

    def find_class(self, module: str, name: str) -> Any:
        if name == _value.__name__ and module == __name__:
            return self._values.__getitem__
        return super().find_class(module, name)


def _made(
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
        made = torch.empty(0, dtype=dtype or torch.uint8)
    elif dtype is None:
        made = torch.frombuffer(owner, dtype=torch.uint8, count=nbytes, offset=where)
    else:
        made = torch.frombuffer(owner, dtype=dtype, count=nbytes // dtype.itemsize, offset=where)
    if stride is None:
        return made.untyped_storage()
    return made.as_strided(shape, stride)

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
import struct
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch._utils import ExceptionWrapper

from fusionloader.options.aliases import Batch
from fusionloader.system.shm.batch_slots import BatchSlots, Owner, WorkersSlots, identify_object
from fusionloader.system.shm.descriptor import Descriptor
from fusionloader.transforms.executors.batch_pickling import (
    SMALLEST_BYTES,
    BatchUnpickler,
    FoundMemory,
    PlacedValue,
    by_value,
    made_value,
    pickle_apart,
)

_LONG_PICKLE = 1 << 16  # bytes; more does not fit into a pipe
_ALIGN = 64
_UNPICKLING = "while the training process unpickled a batch"
_LEFT_FOR_COPIES = 3  # slots that are kept free for batches that have to be copied
_WRITTEN = struct.Struct("<2Q")  # offset and number of bytes of a pickle in a slot
_NO_TOKEN = -1


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


class OpenSlot:
    """A slot that a batch is made in.

    Attributes:
        owner: buffer over the slot's bytes, which keeps the slot in use; ``None`` after
            ``release``, when only the batch keeps it in use.
        begin: address of the slot.
    """

    def __init__(self, slot: Any) -> None:
        self.slot = slot
        self.owner: Owner | None = slot.view()
        slot.hold(self.owner)
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


@contextlib.contextmanager
def collating_in(storage: Callable[[int], torch.UntypedStorage | None]) -> Iterator[None]:
    """Makes ``default_collate`` use this memory instead of fresh shared memory.

    ``storage`` returns a number of bytes, or ``None`` for memory of this process alone.
    """
    original: Any = torch.UntypedStorage._new_shared  # inherited

    def new_shared(cls: Any, size: int, *, device: Any = "cpu") -> Any:
        if torch.device(device).type != "cpu":
            return original(size, device=device)
        made = storage(size)
        return torch.UntypedStorage(size) if made is None else made  # type: ignore[no-untyped-call]

    replaced: Any = classmethod(new_shared)
    torch.UntypedStorage._new_shared = replaced  # type: ignore[method-assign]
    try:
        yield
    finally:
        del torch.UntypedStorage._new_shared


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

    def collating(self) -> contextlib.AbstractContextManager[None]:
        """Makes ``default_collate`` use memory of slots instead of fresh shared memory."""
        return collating_in(self.storage)

    def storage(self, nbytes: int) -> torch.UntypedStorage | None:
        """Returns memory in the slot of the next batch, ``None`` if it is sent apart."""
        if nbytes < SMALLEST_BYTES:
            return None
        if self._open is None:
            if self._slots.count_held() > self._sends.most - _LEFT_FOR_COPIES:
                return None
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
        if nbytes < SMALLEST_BYTES or len(self._sent) > self._sends.most - _LEFT_FOR_COPIES:
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
        pickled, found = pickle_apart(batch)
        self._unsent = [each for each in self._unsent if each.reopen()]
        try:
            return self._packed(pickled, found, opened)
        finally:
            for each in (*self._unsent, *self._sent):
                each.release()

    def _packed(self, pickled: bytes, found: list[FoundMemory], opened: OpenSlot | None) -> Packed:
        large = list(filter(_is_large, found))
        opened = self._made_in(large) or opened
        in_slot = len(pickled) >= _LONG_PICKLE
        if in_slot:  # placed behind the values, as the last of them
            large.append(FoundMemory(pickled, 0, len(pickled), None, (), None))
        where = self._place(large, opened) or self._place(large, self._fresh(large))
        if where is None:
            placed = [by_value(each) for each in found]
            return Packed(self._sends.token, None, placed, pickled)
        offsets, slot = where
        places = iter(offsets)
        placed = [
            (next(places), *each[2:]) if _is_large(each) else by_value(each) for each in found
        ]
        if in_slot:
            placed.append((next(places), *large[-1][2:]))
        slot.set_free(False)  # until the training process frees it
        about = (self._memory, slot.offset, slot.size, self._slots.offsets)
        return Packed(self._sends.token, about, placed, None if in_slot else pickled)

    def _made_in(self, found: list[FoundMemory]) -> OpenSlot | None:
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

    def _fresh(self, found: list[FoundMemory]) -> OpenSlot | None:
        if not found:
            return None
        nbytes = sum(-(-each.nbytes // _ALIGN) * _ALIGN for each in found)
        self._most_bytes = max(self._most_bytes, nbytes)
        return self._acquired(nbytes)

    def _acquired(self, nbytes: int) -> OpenSlot | None:
        slot = self._slots.acquire(max(self._most_bytes, nbytes))
        return None if slot is None else OpenSlot(slot)

    def _place(
        self, found: list[FoundMemory], opened: OpenSlot | None
    ) -> tuple[list[int], Any] | None:
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
                _copy(each, opened.begin + offset)
            offsets.append(offset)
        return offsets, opened.slot


class StagedSender(Sender):
    """A worker's end where batches lie in slots of their mini-batches, for several jobs to read."""

    def __init__(self, acquire: Callable[[int], memoryview], begin: int = 0) -> None:
        """``acquire`` returns the slot of the mini-batch being made, of at least so many bytes.

        Values begin at the offset ``begin`` in it.
        """
        self._memory_of_batch, self._begin = acquire, begin

    def storage(self, nbytes: int) -> None:
        return None

    def open(self, nbytes: int) -> None:
        return None

    def pack(self, batch: Batch) -> Packed:
        pickled, found = pickle_apart(batch, alone=True)  # torch sends shared memory only once
        in_slot = len(pickled) >= _LONG_PICKLE
        if in_slot:
            found.append(FoundMemory(pickled, 0, len(pickled), None, (), None))
        sizes = [-(-each.nbytes // _ALIGN) * _ALIGN * _is_large(each) for each in found]
        *offsets, end = itertools.accumulate(sizes, initial=self._begin)
        address, placed = 0, list[PlacedValue]()
        if any(sizes):
            address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory_of_batch(end)))
        for each, offset in zip(found, offsets, strict=True):
            if _is_large(each):
                _copy(each, address + offset)
                placed.append((offset, *each[2:]))
            else:
                placed.append(by_value(each))
        return Packed(_NO_TOKEN, None, placed, None if in_slot else pickled)


def _copy(found: FoundMemory, address: int) -> None:
    source: Any = found.values if found.address == 0 else found.address
    ctypes.memmove(address, source, found.nbytes)


def _is_large(found: FoundMemory) -> bool:
    return found.nbytes >= SMALLEST_BYTES


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
    placed: list[PlacedValue]
    pickled: bytes | None

    @property
    def needs_slot(self) -> bool:
        """Whether any of it lies in a slot."""
        return any(not isinstance(each[0], bytes) for each in self.placed)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpack, tuple(self)

    def pickled_apart(self) -> bytes:
        """Returns a pickle that ``unpickled`` turns into this object, not into the batch."""
        return pickle.dumps(tuple(self), pickle.HIGHEST_PROTOCOL)


def unpickled(packed: bytes | memoryview) -> Packed:
    return Packed(*pickle.loads(packed))


def pack_into(batch: Batch, memory: memoryview) -> None:
    """Writes a batch into memory that ``read_packed`` reads.

    Raises:
        ValueError: it does not fit.
        Exception: the batch cannot be pickled.
    """
    ends = [_ALIGN]

    def acquire(nbytes: int) -> memoryview:
        if nbytes > len(memory):
            raise ValueError("the batch does not fit")
        ends.append(nbytes)
        return memory

    contents = StagedSender(acquire, begin=_ALIGN).pack(batch).pickled_apart()
    memory[ends[-1] : ends[-1] + len(contents)] = contents
    _WRITTEN.pack_into(memory, 0, ends[-1], len(contents))


def read_packed(memory: Owner) -> Packed:
    """Returns a batch that ``pack_into`` has written into the bytes of a slot."""
    offset, nbytes = _WRITTEN.unpack_from(memory)
    return unpickled(memoryview(memory).cast("B")[offset : offset + nbytes])


class BatchReceiver:
    """The training process's end.

    Attributes:
        slots: slots of all workers.
    """

    def __init__(self) -> None:
        self.slots = WorkersSlots()
        self._token = next(_tokens)
        _receivers[self._token] = self

    def add_worker(self, most: int, number: int) -> Sends:
        """Returns the means of a worker to send at most ``most`` batches at a time.

        The worker before it with the same number has ended.

        Raises:
            OSError: too many files are open.
        """
        return Sends(self._token, Descriptor(self.slots.add_worker(number)), most)

    def view(self, packed: Packed) -> Owner | None:
        """Returns the bytes of a batch's slot, if it has one; see ``WorkersSlots.lease``.

        Raises:
            OSError: the slot cannot be mapped.
        """
        if packed.where is None:
            self.slots.collect()  # the worker has no free slot, perhaps
            return None
        return self.slots.view(*packed.where)

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
            pickled = bytes(memoryview(owner).cast("B")[begin : begin + last[1]])
        values = [made_value(owner, *each) for each in placed]
        return BatchUnpickler(io.BytesIO(pickled), values).load()


def sent_by_value(batch: Batch) -> Batch:
    """Returns a copy of a small batch, made as that of a worker is, without a slot."""
    pickled, found = pickle_apart(batch)
    return BatchReceiver.batch(Packed(_NO_TOKEN, None, list(map(by_value, found)), pickled), None)


_tokens = itertools.count()
_receivers: weakref.WeakValueDictionary[int, BatchReceiver] = weakref.WeakValueDictionary()


def _unpack(*contents: Any) -> Batch:
    packed = Packed(*contents)
    receiver = _receivers.get(packed.token)
    if receiver is None:  # the iterator of the batch has ended
        return None
    try:
        owner = receiver.view(packed)
    except OSError:
        receiver.drop(packed)
        return ExceptionWrapper(where=_UNPICKLING)  # type: ignore[no-untyped-call]
    if owner is not None:
        receiver.slots.lease(owner)
    try:
        return receiver.batch(packed, owner)
    except Exception:  # raised here, torch would not know the number of the batch
        return ExceptionWrapper(where=_UNPICKLING)  # type: ignore[no-untyped-call]

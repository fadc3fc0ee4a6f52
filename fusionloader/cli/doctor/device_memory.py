"""What CUDA does with memory: page-locking, sharing it with another process."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import multiprocessing
import os
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from fusionloader.cli.doctor.check import Check
from fusionloader.cli.doctor.devices import NO_DEVICE, device_count
from fusionloader.cli.progress import elapsed

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

    from fusionloader.system.gpu_memory import LedgerHandle, Lender

_NBYTES = 1 << 20
_SECONDS = 60.0
_LOOKING_SECONDS = 0.005
_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def checks() -> Iterator[Check]:
    """Yields each of them, done once where there is a device."""
    if not device_count():
        yield from (Check(name, NO_DEVICE) for name in ("page-locking", "CUDA IPC"))
    else:
        yield page_locking()
        yield sharing()
    yield segments()


def page_locking() -> Check:
    """Whether memory of batches can be locked, from which copies overlap with training."""
    from fusionloader._native import cuda
    from fusionloader.system.gpu_memory import MemorySharingError

    with contextlib.closing(mmap.mmap(-1, _NBYTES)) as memory:
        view = (ctypes.c_char * _NBYTES).from_buffer(memory)
        address = ctypes.addressof(view)
        try:
            cuda.page_lock(0, address, _NBYTES)
            cuda.page_unlock(0, address)
        except MemorySharingError as error:
            remedy = "ulimit -l unlimited (docker run --ulimit memlock=-1)"
            return Check("page-locking", f"does not work: {error}", "warn", remedy)
        finally:
            del view  # the mapping cannot be closed under it
    return Check("page-locking", "works")


def sharing() -> Check:
    """Whether a second process can write into this one's memory of the device: it does."""
    from fusionloader.system.gpu_memory.lender import under_mps

    with elapsed("lending memory to another process"):
        refused = try_sharing()
    if refused is not None:
        remedy = (
            'GpuWorker(where="thread") or memory="own"; known reasons are MIG, gVisor, and '
            "containers with PID namespaces of their own (docker run --pid=host)"
        )
        return Check("CUDA IPC", f"does not work: {refused}", "warn", remedy)
    mps = "; under CUDA's MPS, where a worker that keeps memory cannot be killed"
    return Check("CUDA IPC", f"works{mps if under_mps() else ''}")


def try_sharing() -> str | None:
    """Lends 2 MiB to a new process once; returns why that does not work, ``None`` if it does."""
    from fusionloader.system.gpu_memory import Lender, MemorySharingError

    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe(duplex=False)
    try:
        with Lender() as lender:
            peer = spawn.Process(target=_answer, args=(lender.ledger_handle(), theirs))
            peer.start()
            theirs.close()
            refused = _probe(lender, peer)
            said = _received(ours) if refused else None
            peer.join()
    except MemorySharingError as error:
        return str(error)
    return said or refused


def _probe(lender: Lender, peer: SpawnProcess) -> str | None:
    """As ``gpu_memory.probe``, but over as soon as the peer has ended."""
    from fusionloader.system.gpu_memory.probe import Probe

    under_way = Probe(lender, 0, _SECONDS)
    while True:
        ended = not peer.is_alive()  # asked first: it may have answered before it ended
        if under_way.is_over():
            return under_way.refused
        if ended:
            under_way.end()
            return under_way.refused
        time.sleep(_LOOKING_SECONDS)


def _answer(handle: LedgerHandle, said: Connection) -> None:
    from fusionloader.system.gpu_memory import Borrower, MemorySharingError, answer_probe

    try:
        with Borrower(handle) as borrower:
            said.send(answer_probe(borrower, _SECONDS))
    except MemorySharingError as error:
        said.send(str(error))


def _received(connection: Connection) -> str | None:
    """What the peer has to say; it knows better than this process why it failed."""
    try:
        answer: str | None = connection.recv()
    except EOFError:
        return "the other process has died"
    return answer


def segments() -> Check:
    """Whether torch is set to allocate what can be lent to a GPU worker."""
    name = "expandable segments"
    for variable in _SETTINGS:
        for part in os.environ.get(variable, "").split(","):
            setting, _, value = (word.strip() for word in part.partition(":"))
            remedy = f"take {part.strip()} out of {variable}"
            if (setting, value.lower()) == ("expandable_segments", "true"):
                said = f"asked for by {variable}: memory of training cannot be lent"
                return Check(name, said, "warn", remedy)
            if setting == "backend" and value != "native":
                said = f"{variable} asks for another allocator: its memory cannot be lent"
                return Check(name, said, "warn", remedy)
    return Check(name, "off: memory of training can be lent" if device_count() else "off")

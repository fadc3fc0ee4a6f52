"""The layout of user code's samples, as both ends know it, and where the proxy writes them."""

from __future__ import annotations

import hashlib
import io
import pickle
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from fusionloader import _native
from fusionloader.sharing.remote.protocol import LAYOUT_BYTES

if TYPE_CHECKING:
    from fusionloader.transforms.executors.layout import Layout

_OURS = ("builtins", "collections", "fusionloader", "numpy", "torch")


def layout_digest(layout: Layout) -> bytes:
    """Returns a digest of ``LAYOUT_BYTES``, the same for layouts of the same structure."""
    return hashlib.blake2b(repr(layout).encode(), digest_size=LAYOUT_BYTES).digest()


class Settled(NamedTuple):
    """A loader's layout, its digest, and the bytes of a row of each leaf."""

    layout: Layout
    digest: bytes
    leaf_bytes: tuple[int, ...]


class LayoutRows:
    """Rows of a loader whose first sample settles their layout. Several threads may use it."""

    def __init__(self) -> None:
        self._settled: tuple[int, Settled] | None = None
        self._lock = threading.Lock()

    def settled(self, queue: _native.WorkerQueue) -> Settled | None:
        """Returns the layout, ``None`` before this machine's workers have made a sample."""
        version = queue.layout_version
        if not version:
            return None
        with self._lock:
            if self._settled is None or self._settled[0] != version:
                layout = _Unpickler(io.BytesIO(queue.layout())).load()
                leaves = tuple(leaf.nbytes for leaf in layout.leaves)
                self._settled = version, Settled(layout, layout_digest(layout), leaves)
            return self._settled[1]

    @property
    def row_bytes(self) -> int:
        """Bytes of a sample, of all its leaves; 0 before the layout is settled."""
        return 0 if self._settled is None else sum(self._settled[1].leaf_bytes)

    def places(self, queue: _native.WorkerQueue, claim: _native.Claim) -> list[memoryview]:
        """Returns the memory for the samples of a held claim, leaf by leaf."""
        settled = self.settled(queue)
        assert settled is not None
        memory = queue.rows(claim)
        first = claim.first * claim.tiny_size
        last = min(first + claim.count * claim.tiny_size, claim.samples)
        offsets = settled.layout.offsets(claim.payload_rows)
        return [
            memory[offset + first * nbytes : offset + last * nbytes]
            for offset, nbytes in zip(offsets, settled.leaf_bytes, strict=True)
            if nbytes
        ]


class _Unpickler(pickle.Unpickler):
    """Reads a layout without importing the user's modules, whose classes it may have."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] in _OURS:
            return super().find_class(module, name)
        return type(name.rpartition(".")[2], (), {"__module__": module, "__qualname__": name})

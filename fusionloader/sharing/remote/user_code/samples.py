"""Samples of user code on a remote worker, the same that the loader's own workers make."""

from __future__ import annotations

import pickle
from typing import Any

from fusionloader.sharing.remote.protocol import (
    LAYOUT_BYTES,
    MOST_BODY,
    MalformedMessage,
    WorkRequest,
)
from fusionloader.sharing.remote.user_code.bundle import NotMade
from fusionloader.sharing.remote.user_code.layouts import layout_digest
from fusionloader.transforms.executors.layout import Layout
from fusionloader.transforms.executors.python import SampleKey, Source
from fusionloader.transforms.executors.row_writer import LayoutMismatch, WriteRows, make_writer
from fusionloader.workers.preparation import prepare_process

_INDEX_BYTES = 8


class SampleMaker:
    """Makes samples of one copy of a dataset. Rows are valid until the next call."""

    def __init__(self, pickled: bytes, worker: int, workers: int, base_seed: int) -> None:
        """Loads the dataset and prepares the process, as a worker of the loader does.

        Args:
            pickled: a pickled source of samples.
            worker: number of this worker among the remote ones.
            workers: number of workers on the loader's machine; ids of remote ones follow theirs.
            base_seed: seed of the loader's iterator.
        """
        self._source: Source = pickle.loads(pickled)
        self._source.seeding = prepare_process(
            workers + worker, workers, base_seed, self._source.dataset, None
        )
        self._layout: Layout | None = None
        self._digest = b""
        self._memory: dict[int, tuple[bytearray, WriteRows]] = {}  # by number of samples

    def make(self, request: WorkRequest, body: memoryview) -> list[memoryview]:
        """Returns the rows of all samples, leaf by leaf.

        Args:
            request: what the random draws depend on.
            body: the digest of the loader's layout, then the indices as int64.

        Raises:
            NotMade: user code raises an error, or the samples have another layout.
            MalformedMessage: the body has another size.
        """
        if len(body) != LAYOUT_BYTES + _INDEX_BYTES * len(request.samples):
            raise MalformedMessage(f"PREPARE has {len(body)} bytes of indices")
        digest, indices = bytes(body[:LAYOUT_BYTES]), body[LAYOUT_BYTES:].cast("q")
        samples = [
            self._load(SampleKey(index, request.seed, request.epoch, key, occurrence, group))
            for index, (key, group, _, occurrence, _) in zip(indices, request.samples, strict=True)
        ]
        self._source.take_spent()  # clears the times, which are not reported from here
        if self._layout is None or self._digest != digest:
            self._take_layout(samples[0], digest)
        try:
            return self._rows(samples)
        except LayoutMismatch as error:
            raise NotMade(f"its samples differ from one to another: {error}") from None

    def _load(self, key: SampleKey) -> Any:
        try:
            return self._source.load(key)
        except Exception as error:  # the loader's machine makes the sample and reports the error
            text = f"{self._source.name(key)}: {type(error).__name__}: {error}"
            raise NotMade(text) from None

    def _take_layout(self, sample: Any, digest: bytes) -> None:
        layout = Layout.of(sample)
        if isinstance(layout, str):
            raise NotMade(layout)
        if layout_digest(layout) != digest:
            raise NotMade(f"its samples are {layout.describe()} here, unlike the loader's first")
        self._layout, self._digest = layout, digest
        self._memory.clear()

    def _rows(self, samples: list[Any]) -> list[memoryview]:
        layout, count = self._layout, len(samples)
        assert layout is not None
        if layout.batch_bytes(count) > MOST_BODY:
            raise NotMade(f"{count} samples have {layout.batch_bytes(count)} bytes")
        if count not in self._memory:
            buffer = bytearray(layout.batch_bytes(count))
            self._memory[count] = buffer, make_writer(layout, buffer, count)
        buffer, write = self._memory[count]
        write(0, samples)
        whole = memoryview(buffer)
        return [
            whole[offset : offset + leaf.nbytes * count]
            for leaf, offset in zip(layout.leaves, layout.offsets(count), strict=True)
        ]

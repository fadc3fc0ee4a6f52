"""The samples that the reading process has requested: bytes, errors, or pending reads."""

from __future__ import annotations

import asyncio

import numpy as np

from fusionloader.cache.range_reading import ShardChanged
from fusionloader.cache.tiers.dataset_table import OFFSET_BITS, DatasetTable
from fusionloader.data.sources.streams.object_store import ObjectStore, Version
from fusionloader.data.sources.streams.settings import ReadSettings
from fusionloader.scheduler.read_ahead import RangeRequest, ReadAhead, ReadLimits

_CHECKED_SECONDS = 10.0  # after which the next request checks again that a file is unchanged
_OFFSET_MASK = (1 << OFFSET_BITS) - 1


class HeldSamples:
    """Reads announced samples ahead of their use, and other samples on demand.

    For one event loop.

    Attributes:
        on_demand: number of samples that were requested before they were read ahead.
    """

    def __init__(self, table: DatasetTable, settings: ReadSettings, store: ObjectStore) -> None:
        """``table`` has the range of each sample, and the versions of files that were indexed."""
        limits = ReadLimits(settings.ahead_bytes, settings.request_bytes, settings.gap_bytes)
        self._places = TablePlaces(table)
        self._plan = ReadAhead(self._places, limits)
        self._most = settings.in_flight
        self._table, self._store = table, store
        self._held: dict[int, asyncio.Future[bytes]] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._checked: dict[int, tuple[float, asyncio.Task[None]]] = {}
        self._pass = 0
        self._holds_back = False
        self.on_demand = 0

    @property
    def nbytes(self) -> int:
        """Bytes of samples that are being read or held."""
        return self._plan.held

    def begin(self) -> None:
        """Drops all announced samples. Reading ahead starts again with ``go``."""
        self._pass += 1
        self._holds_back = True
        for task in self._running:
            task.cancel()
        self._running.clear()
        self._held.clear()
        self._checked.clear()
        self._plan.clear()

    def go(self) -> None:
        """Starts reading ahead. Enough samples are announced to form large requests."""
        self._holds_back = False
        self.go_on()

    def announce(self, items: list[int]) -> None:
        """Appends samples to the announced ones, in the order in which they will be used."""
        self._plan.announce(items)
        self.go_on()

    def forget(self, items: list[int]) -> None:
        """Drops samples that no worker will request any more."""
        for item in self._plan.dropped(items):
            self._held.pop(item, None)
        self.go_on()

    def go_on(self) -> None:
        """Sends requests up to the limits of requests in flight and of bytes."""
        while len(self._running) < self._most and not self._holds_back:
            request = self._plan.next_request()
            if request is None:
                return
            self._send(request)

    async def take(self, items: list[int]) -> dict[int, bytes | Exception]:
        """Returns the bytes of each sample, or the error of its read."""
        # begin() drops the pending reads of a pass: samples requested here are then read again.
        while True:
            missing = [item for item in items if not self._plan.expects(item)]
            self.on_demand += len(missing)
            for request in self._plan.demand(missing):
                self._send(request)
            wanted = {item: self._held[item] for item in items}
            began = self._pass
            found = await asyncio.gather(*wanted.values(), return_exceptions=True)
            if began == self._pass:
                break
        for item in items:
            if self._plan.taken(item):
                self._held.pop(item, None)
        self.go_on()
        return {
            item: data if isinstance(data, bytes) else _as_error(data)
            for item, data in zip(wanted, found, strict=True)
        }

    def _send(self, request: RangeRequest) -> None:
        loop = asyncio.get_running_loop()
        samples = {item: loop.create_future() for item in request.items}
        self._held.update(samples)
        task = loop.create_task(self._read(request, samples))
        self._running.add(task)
        task.add_done_callback(lambda it: self._done(it, samples))

    def _done(self, task: asyncio.Task[None], samples: dict[int, asyncio.Future[bytes]]) -> None:
        self._running.discard(task)
        for sample in samples.values():
            sample.cancel()  # a dropped request has set no results
        self.go_on()

    async def _read(self, request: RangeRequest, samples: dict[int, asyncio.Future[bytes]]) -> None:
        """Reads the range of a request, and sets each sample's bytes or the error."""
        url = self._url(request)
        try:
            data = await self._read_range(request, url)
        except Exception as error:
            for sample in samples.values():
                sample.set_exception(error)
                sample.exception()  # marks it as retrieved: a sample may never be taken
            return
        whole = memoryview(data)
        for item, sample in samples.items():
            _, start, stop = self._places.range(self._places.place(item))
            sample.set_result(bytes(whole[start - request.start : stop - request.start]))

    async def _read_range(self, request: RangeRequest, url: str) -> bytes:
        """Returns the bytes of a request. ShardChanged takes precedence over other errors."""
        unchanged, data = await asyncio.gather(
            self._unchanged(request.file, url),
            self._store.read(url, request.start, request.stop),
            return_exceptions=True,
        )
        if isinstance(unchanged, ShardChanged):
            raise unchanged
        if isinstance(data, BaseException):
            raise data
        if unchanged is not None:
            raise unchanged
        return data

    def _url(self, request: RangeRequest) -> str:
        return self._table.path(request.items[0]).decode()

    async def _unchanged(self, file: int, url: str) -> None:
        """Raises ShardChanged if a file is not the one that was indexed.

        The version is requested once in a pass, and again every 10 seconds of use.
        """
        loop = asyncio.get_running_loop()
        checked_at, task = self._checked.get(file, (0.0, None))
        if task is None or (task.done() and loop.time() - checked_at > _CHECKED_SECONDS):
            task = loop.create_task(self._check(file, url))
            task.add_done_callback(lambda it: it.cancelled() or it.exception())  # retrieved
            self._checked[file] = loop.time(), task
        try:
            await asyncio.shield(task)
        except ShardChanged:
            raise
        except Exception:
            self._checked.pop(file, None)  # the check itself failed: the next request repeats it
            raise

    async def _check(self, file: int, url: str) -> None:
        nbytes, tag = self._table.stamps[file].tolist()
        if not nbytes and not tag:
            return
        found = await self._store.version(url)
        expected = Version(nbytes, tag)
        if (found.nbytes and nbytes and found.nbytes != nbytes) or (
            found.tag and tag and found.tag != tag
        ):
            raise ShardChanged(
                f"{url!r} is not the file that was indexed: it has {found.nbytes} bytes and "
                f"version {found.tag:x}, and had {expected.nbytes} and {expected.tag:x}: put it "
                "back, or index it again (make the dataset anew)"
            )


def _as_error(error: object) -> Exception:
    if isinstance(error, Exception):
        return error
    return ConnectionAbortedError(f"the request was dropped ({type(error).__name__})")


class TablePlaces:
    """The ``Places`` of a table: its samples in the order of their bytes.

    Takes 8 bytes a sample, or nothing if the table is in the order of its files.
    """

    def __init__(self, table: DatasetTable) -> None:
        assert table.ranges is not None
        self._ranges, self._sizes = table.ranges.data, table.sizes.data
        self._places: memoryview | None = None
        self._items: memoryview | None = None
        if len(table) > 1 and not bool((table.ranges[1:] >= table.ranges[:-1]).all()):
            order = np.argsort(table.ranges, kind="stable").astype(np.uint32)
            places = np.empty(len(order), np.uint32)
            places[order] = np.arange(len(order), dtype=np.uint32)
            self._items, self._places = order.data, places.data

    def place(self, item: int) -> int:
        return item if self._places is None else int(self._places[item])

    def item(self, place: int) -> int:
        return place if self._items is None else int(self._items[place])

    def range(self, place: int) -> tuple[int, int, int]:
        """Returns file number, first byte and end of the sample at a place."""
        item = self.item(place)
        packed = self._ranges[item]
        start = packed & _OFFSET_MASK
        return packed >> OFFSET_BITS, start, start + self._sizes[item]

    def __len__(self) -> int:
        return len(self._ranges)

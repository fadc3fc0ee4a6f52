"""Reads ranges of URLs through fsspec, with retries, timeouts and hedged requests.

It runs on one event loop. Asynchronous file systems of fsspec run on the same loop, and others in
threads, where a call that hangs is abandoned after its timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fusionloader.data.sources import http_ranges
from fusionloader.data.sources.http_ranges import WrongLength
from fusionloader.data.sources.streams.settings import ReadSettings
from fusionloader.data.sources.url_errors import is_worth_another_try, unreadable
from fusionloader.scheduler.retries import Backoff, Hedging

T = TypeVar("T")


@dataclass(slots=True)
class StoreCounts:
    """Counts since the store was opened.

    Attributes:
        requests: requests sent, including hedged ones.
        hedged: requests that were sent a second time because the first answer was late.
        hedges_won: hedged requests that were answered before the first one.
        retries: attempts after a failed one.
        failures: requests that failed in all attempts.
        bytes: bytes of all answers.
    """

    requests: int = 0
    hedged: int = 0
    hedges_won: int = 0
    retries: int = 0
    failures: int = 0
    bytes: int = 0


class Version(NamedTuple):
    """Size and tag of a file, which change when the file is replaced.

    Attributes:
        nbytes: size in bytes; 0 if the server does not report it.
        tag: hash of the ETag, checksum or time of modification; 0 if there is none.
    """

    nbytes: int
    tag: int


class ObjectStore:
    """Reads ranges of URLs. For one event loop.

    Attributes:
        counts: counts of requests and bytes.
    """

    def __init__(self, settings: ReadSettings, *, connections: int = 64) -> None:
        """``connections`` is the largest number of open connections."""
        self.counts = StoreCounts()
        self._settings = settings
        self._connections = connections
        self._backoff = Backoff(settings.retries)
        self._hedging = Hedging()
        self._systems: dict[str, _System] = {}
        self._threads: ThreadPoolExecutor | None = None

    async def read(self, url: str, start: int, stop: int) -> bytes:
        """Returns the bytes from ``start`` to ``stop``.

        Raises:
            UrlUnreadable: all attempts failed; the message has a remedy.
        """
        return await self._repeated(url, start, stop, lambda: self._attempt(url, start, stop))

    async def version(self, url: str) -> Version:
        """Returns size and tag of a file.

        Raises:
            UrlUnreadable: all attempts failed.
        """

        async def ask() -> Version:
            self.counts.requests += 1
            system = self._system(url)
            return _version(await self._timed(system.info(url)))

        return await self._repeated(url, 0, 1, ask)

    async def whole(self, url: str, most: int) -> bytes:
        """Returns a whole file. Over HTTP it may have at most ``most`` bytes.

        Raises:
            UrlUnreadable: all attempts failed; ``UrlAbsent`` if the file does not exist.
        """

        async def ask() -> bytes:
            self.counts.requests += 1
            return await self._timed(self._system(url).whole(url, most))

        return await self._repeated(url, 0, 1, ask)

    async def write(self, url: str, data: bytes) -> None:
        """Writes a whole file.

        Raises:
            UrlUnreadable: all attempts failed.
        """

        async def ask() -> None:
            await self._timed(self._system(url).pipe(url, data))

        await self._repeated(url, 0, 1, ask)

    async def close(self) -> None:
        for system in self._systems.values():
            await system.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _repeated(
        self, url: str, start: int, stop: int, ask: Callable[[], Awaitable[T]]
    ) -> T:
        for attempt in range(1, self._settings.retries + 2):
            try:
                return await ask()
            except Exception as error:
                wait = None
                if is_worth_another_try(error):
                    wait = self._backoff.wait(attempt, random.random())
                if wait is None:
                    self.counts.failures += 1
                    raise unreadable(url, start, stop, error, attempt) from error
                self.counts.retries += 1
                await asyncio.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, url: str, start: int, stop: int) -> bytes:
        """Returns the first good answer to a request, which is sent twice if the answer is late."""
        began = time.perf_counter()
        late = self._hedging.late_after() if self._settings.hedge else None
        self._hedging.sent()
        first = asyncio.ensure_future(self._once(url, start, stop))
        running = {first}
        try:
            if late is not None:
                await asyncio.wait(running, timeout=late)
                if not first.done() and self._hedging.allow():
                    self.counts.hedged += 1
                    running.add(asyncio.ensure_future(self._once(url, start, stop)))
            data, winner = await _first_good(running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        self.counts.hedges_won += winner is not first
        self._hedging.answered(time.perf_counter() - began)
        return data

    async def _once(self, url: str, start: int, stop: int) -> bytes:
        self.counts.requests += 1
        data = await self._timed(self._system(url).cat(url, start, stop))
        self.counts.bytes += len(data)
        if len(data) != stop - start:
            raise WrongLength(f"{len(data)} bytes instead of {stop - start}")
        return data

    async def _timed(self, answer: Awaitable[T]) -> T:
        return await asyncio.wait_for(answer, self._settings.timeout)

    def _system(self, url: str) -> _System:
        protocol = url.partition("://")[0]
        if protocol not in self._systems:
            self._systems[protocol] = self._open(url)
        return self._systems[protocol]

    def _open(self, url: str) -> _System:
        from fsspec.core import get_filesystem_class, split_protocol, url_to_fs

        protocol, _ = split_protocol(url)
        options = _without_own_retries(protocol, self._settings.storage_options, self._connections)
        kind = get_filesystem_class(protocol)
        if getattr(kind, "async_impl", False):
            loop = asyncio.get_running_loop()
            system, _ = url_to_fs(
                url, asynchronous=True, loop=loop, skip_instance_cache=True, **options
            )
            if hasattr(system, "retries"):
                system.retries = 1  # of s3fs itself, because attempts are counted here
            return _System(system, None)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._connections, "fusionloader-range")
        system, _ = url_to_fs(url, **options)
        return _System(system, self._threads)


@dataclass(slots=True)
class _System:
    """A file system of fsspec, called from an event loop; ``threads`` if it is synchronous."""

    system: Any
    threads: ThreadPoolExecutor | None
    paths: dict[str, str] = field(default_factory=dict)

    async def cat(self, url: str, start: int, stop: int) -> bytes:
        if http_ranges.is_http(self.system):
            return await http_ranges.read_range(self.system, self.path(url), start, stop)
        return await self._cat(self.path(url), start, stop)

    async def whole(self, url: str, most: int) -> bytes:
        if http_ranges.is_http(self.system):
            return await http_ranges.read_whole(self.system, self.path(url), most)
        return await self._cat(self.path(url), None, None)

    async def _cat(self, path: str, start: int | None, stop: int | None) -> bytes:
        return bytes(await self._call("cat_file", path, start=start, end=stop))

    async def info(self, url: str) -> dict[str, Any]:
        info = dict(await self._call("info", self.path(url)))
        if self.system.protocol == "hf":
            # info() leaves out the file's hash, which is in the listing that it has cached.
            listed = await self._call("ls", self.system._parent(info["name"]))
            info = next((each for each in listed if each["name"] == info["name"]), info)
        return info

    async def pipe(self, url: str, data: bytes) -> None:
        await self._call("pipe_file", self.path(url), data)

    def path(self, url: str) -> str:
        if url not in self.paths:
            self.paths[url] = str(self.system._strip_protocol(url))
        return self.paths[url]

    async def close(self) -> None:
        with contextlib.suppress(Exception):  # errors at the end of a connection do not matter
            creator = getattr(self.system, "_s3creator", None)
            session = getattr(self.system, "_session", None)
            if creator is not None:
                await creator.__aexit__(None, None, None)
            elif session is not None:
                await session.close()

    async def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Calls a method of the system: its coroutine, or else it in a thread."""
        if self.threads is None:
            return await getattr(self.system, f"_{method}")(*arguments, **options)
        call = partial(getattr(self.system, method), *arguments, **options)
        return await asyncio.get_running_loop().run_in_executor(self.threads, call)


async def _first_good(running: set[asyncio.Task[bytes]]) -> tuple[bytes, asyncio.Task[bytes]]:
    """Returns the first successful answer and its task, or raises the last error."""
    pending = set(running)
    while True:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if not pending or task.exception() is None:  # the last error is raised by result()
                return task.result(), task


def _without_own_retries(
    protocol: str | None, options: dict[str, Any], connections: int
) -> dict[str, Any]:
    """Returns fsspec's options without its own retries, unless the user sets them."""
    if protocol not in ("s3", "s3a"):
        return dict(options)
    config = {
        "retries": {"max_attempts": 0},
        "max_pool_connections": connections,
        **options.get("config_kwargs", {}),
    }
    return {**options, "config_kwargs": config}


def _version(info: dict[str, Any]) -> Version:
    names = ("ETag", "etag", "Content-MD5", "Digest", "md5Hash", "crc32c", "generation", "blob_id")
    found = next((info[name] for name in names if info.get(name)), None)
    if found is None:
        times = ("Last-Modified", "LastModified", "mtime", "updated", "last_modified", "created")
        found = next((info[name] for name in times if info.get(name)), None)
    tag = 0
    if found is not None:
        digest = hashlib.blake2b(str(found).encode(), digest_size=8).digest()
        tag = int.from_bytes(digest, "little") >> 1 or 1
    return Version(int(info.get("size") or 0), tag)

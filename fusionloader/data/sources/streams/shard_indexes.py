"""The indexes of remote tar archives: beside them, in the user's cache, or made by reading them.

The index beside a shard has the shard's URL with ``.fusionloader-index`` appended. Every index is
cached in the user's cache, by the shard's URL, where the next run finds it.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from fusionloader.data.sources.shards.tar_index import SUFFIX, TarIndex
from fusionloader.data.sources.shards.tar_local_index import write_atomically
from fusionloader.data.sources.shards.tar_members import CorruptTar, UnreadableIndex, scan
from fusionloader.data.sources.shards.tar_samples import MemberChoice, has_targets
from fusionloader.data.sources.streams.object_store import ObjectStore, Version
from fusionloader.data.sources.streams.settings import ReadSettings
from fusionloader.data.sources.url_errors import UrlAbsent, UrlDenied
from fusionloader.system.user_cache import cache_folder

log = logging.getLogger("fusionloader.streams")

IndexMode = Literal["auto", "beside"]
Progressed = Callable[[str], None]

_BLOCK = 8 << 20
_SHARDS_AT_A_TIME = 16
_BLOCKS_AHEAD = 2
_SHORTEST_INDEX = 1 << 16  # bytes that an index of a few members may have
_MOST_INDEX = 1 << 32  # if the server does not report the shard's size

T = TypeVar("T")


def find_indexes(
    urls: Sequence[str], settings: ReadSettings, mode: IndexMode, choice: MemberChoice
) -> list[TarIndex]:
    """Returns the index of every shard.

    Args:
        urls: URLs of the shards.
        settings: read settings.
        mode: ``"beside"`` uses only the indexes beside the shards.
        choice: choice of the members whose small contents the index must have.

    Raises:
        UrlUnreadable: a shard or its index cannot be read.
        ShardError: a shard is damaged; an index is missing or of another shard.
    """

    async def all_of_them(store: ObjectStore) -> list[TarIndex]:
        return await _gather(urls, lambda url: _find(store, url, mode, choice))

    return run_apart(settings, all_of_them)


def write_indexes(
    urls: Sequence[str],
    settings: ReadSettings,
    inline: frozenset[bytes],
    progressed: Progressed = lambda url: None,
) -> list[TarIndex]:
    """Reads every shard once and writes its index beside it.

    Args:
        urls: URLs of the shards.
        settings: read settings.
        inline: extensions of members whose content an index has.
        progressed: called with the URL of each shard when its index is written.

    Raises:
        UrlUnreadable: a shard cannot be read, or its index cannot be written.
        ShardError: a shard is damaged.
    """

    async def all_of_them(store: ObjectStore) -> list[TarIndex]:
        async def one(url: str) -> TarIndex:
            made = await _make_index(store, url, await store.version(url), inline)
            await store.write(url + SUFFIX, made.to_bytes())
            progressed(url)
            return made

        return await _gather(urls, one)

    return run_apart(settings, all_of_them)


def cached_index_path(url: str) -> Path:
    """Returns the path of a shard's index in the user's cache."""
    digest = hashlib.blake2b(url.encode(), digest_size=16).hexdigest()
    return cache_folder() / "tar-indexes" / f"{digest}{SUFFIX}"


def run_apart(settings: ReadSettings, work: Callable[[ObjectStore], Coroutine[Any, Any, T]]) -> T:
    """Runs ``work`` on an event loop in a thread of its own, and returns its result.

    The caller's thread may already run an event loop, as in a notebook.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    async def with_store() -> T:
        store = ObjectStore(settings)
        try:
            return await work(store)
        finally:
            await store.close()

    def run() -> None:
        try:
            done.append(asyncio.run(with_store()))
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="fusionloader-urls", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


async def _gather(urls: Sequence[str], one: Callable[[str], Coroutine[Any, Any, T]]) -> list[T]:
    slots = asyncio.Semaphore(_SHARDS_AT_A_TIME)

    async def in_turn(url: str) -> T:
        async with slots:
            return await one(url)

    tasks = [asyncio.ensure_future(in_turn(url)) for url in urls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


async def _find(store: ObjectStore, url: str, mode: IndexMode, choice: MemberChoice) -> TarIndex:
    version = await store.version(url)
    cached = cached_index_path(url)
    if mode == "auto" and (found := _read_cached(cached, version)) and has_targets(found, choice):
        return found
    try:
        index = await _read_beside(store, url, version)
    except UrlAbsent:
        if mode == "beside":
            raise UnreadableIndex(
                f"{url}{SUFFIX} is not there: write it with `python -m fusionloader index {url}`, "
                'or let it be made with index="auto"'
            ) from None
        index = None
    except UnreadableIndex as error:  # such as that of a local folder, which has another version
        if mode == "beside":
            raise
        log.warning("%s; the shard is read", error)
        index = None
    if index is None or (mode == "auto" and not has_targets(index, choice)):
        log.info("%s has no index with its targets: the shard is read once to make it", url)
        index = await _make_index(store, url, version, choice.inline)
    _write_cached(cached, index)
    return index


async def _read_beside(store: ObjectStore, url: str, version: Version) -> TarIndex | None:
    """Returns the index beside a shard; ``None`` if access is denied.

    Raises:
        UrlAbsent: there is no index.
        UnreadableIndex: it is damaged or of another shard.
    """
    try:
        # An index is shorter than its shard, which has a header of 512 bytes for each member.
        data = await store.whole(url + SUFFIX, (version.nbytes or _MOST_INDEX) + _SHORTEST_INDEX)
    except UrlDenied:  # S3's answer for an absent file, without the right to list the bucket
        return None
    index = TarIndex.from_bytes(data, url + SUFFIX)
    if not _matches(index, version):
        raise UnreadableIndex(
            f"{url}{SUFFIX} is the index of a shard of {index.shard_bytes} bytes and version "
            f"{index.shard_version:x}, and this one has {version.nbytes} and {version.tag:x}: "
            f"write it again with `python -m fusionloader index {url}`"
        )
    return index


def _matches(index: TarIndex, version: Version) -> bool:
    same_size = not version.nbytes or index.shard_bytes == version.nbytes
    known = bool(version.tag and index.shard_version)
    return same_size and (not known or index.shard_version == version.tag)


async def _make_index(
    store: ObjectStore, url: str, version: Version, inline: frozenset[bytes]
) -> TarIndex:
    """Reads a shard from its beginning to its end and returns its index."""
    if not version.nbytes:
        raise CorruptTar(f"{url}: the shard is empty, or its server does not tell its size")
    blocks = _Blocks(store, url, version.nbytes)
    walk = scan(url, version.nbytes, inline)
    try:
        wanted = next(walk)
        while True:
            wanted = walk.send(await blocks.read(wanted.offset, wanted.nbytes))
    except StopIteration as end:
        return TarIndex.from_members(end.value, version.nbytes, version.tag)
    finally:
        blocks.close()


class _Blocks:
    """A file read in large blocks, with the next blocks ahead. Blocks not needed are skipped."""

    def __init__(self, store: ObjectStore, url: str, nbytes: int) -> None:
        self._store, self._url, self._nbytes = store, url, nbytes
        self._tasks: dict[int, asyncio.Task[bytes]] = {}

    async def read(self, offset: int, nbytes: int) -> bytes:
        """Returns a range of bytes. Ranges must not go backwards."""
        first, last = offset // _BLOCK, (min(offset + nbytes, self._nbytes) - 1) // _BLOCK
        for gone in [number for number in self._tasks if number < first]:
            self._tasks.pop(gone).cancel()
        parts = [await self._block(number) for number in range(first, last + 1)]
        begin = offset - first * _BLOCK
        return b"".join(parts)[begin : begin + nbytes]

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    async def _block(self, number: int) -> bytes:
        for ahead in range(number, number + 1 + _BLOCKS_AHEAD):
            start = ahead * _BLOCK
            if start < self._nbytes and ahead not in self._tasks:
                stop = min(start + _BLOCK, self._nbytes)
                reading = self._store.read(self._url, start, stop)
                self._tasks[ahead] = asyncio.ensure_future(reading)
        return await self._tasks[number]


def _read_cached(path: Path, version: Version) -> TarIndex | None:
    try:
        index = TarIndex.from_bytes(path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    except (OSError, UnreadableIndex) as error:
        log.warning("%s; it is made again", error)
        return None
    return index if _matches(index, version) else None


def _write_cached(path: Path, index: TarIndex) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, index.to_bytes())
    except OSError as error:
        log.warning("the index of a shard is not kept for the next run: %s", error)

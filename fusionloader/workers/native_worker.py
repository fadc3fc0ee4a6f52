"""The native worker: a CPU worker for a wholly compiled plan, without torch or numpy.

The native loop does the work. Python handles assignments to other ranks, and files that the native
decoders do not know: Pillow decodes them, or raises the error.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fusionloader import _native
from fusionloader._native import WorkerEvent
from fusionloader.cache.range_reading import FileRange, ShardChanged, open_file, read_range
from fusionloader.cache.remote_files import RangeFetcher
from fusionloader.cache.tiers.store_handles import DESCRIPTORS, OpenHandles, StoreHandles
from fusionloader.data.sources.pillow_pixels import rgb_bytes
from fusionloader.system.shm import cache_counts
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import Plan
from fusionloader.workers import messages, sample_errors
from fusionloader.workers.pillow_formats import AddedFormats
from fusionloader.workers.sample_errors import BadSample, resolve

if TYPE_CHECKING:
    from typing import IO

    from fusionloader.cache.remote_files import FileFetcher, RemoteFiles
    from fusionloader.data.sources.sample_names import SampleNames
    from fusionloader.options.loader_options import OnError
    from fusionloader.workers.assignments import PlanAssignments


@dataclass(frozen=True, slots=True)
class NativeWorkerConfig:
    """Configuration of a worker process; the descriptors are open in it under these numbers.

    A descriptor that the loader does not use is -1. The fields from ``ledger_fd`` to
    ``jpeg_index_fd``, and ``mapped``, are those of the loader's cache (``StoreHandles``).

    Attributes:
        table_fd: descriptor of the dataset's table.
        table_bytes: size of the table.
        plan: decoding and transforms.
        on_error: option of the loader.
        worker: the worker's number. It and the next four fields are set when a worker is started.
        parent: process id of the training process; 0 for the parent process.
        control_fd: descriptor of the control block.
        data_fd: descriptor of the slots.
        message_fd: descriptor of the pipe to the manager.
        event_fd: descriptor of the event that wakes a worker shared by several ranks.
        address: address of the global manager; empty if workers are not shared.
        load_truncated: Pillow's ``LOAD_TRUNCATED_IMAGES`` in the training process.
        max_pixels: Pillow's ``MAX_IMAGE_PIXELS`` in the training process.
        formats: formats that the training process has added to Pillow.
        remote_files: opens the fetcher of files at URLs, or in cache servers.
        identity_fd: descriptor of the identity that all cache servers share.
        names: pickled ``SampleNames`` of ranges, unpickled only for a message.
    """

    table_fd: int
    table_bytes: int
    plan: Plan
    on_error: OnError
    worker: int = 0
    parent: int = 0
    control_fd: int = -1
    data_fd: int = -1
    message_fd: int = -1
    event_fd: int = -1
    address: str = ""
    load_truncated: bool = False
    max_pixels: int | None = None
    formats: AddedFormats = AddedFormats()
    ledger_fd: int = -1
    control_page_fd: int = -1
    index_fd: int = -1
    encoded_fd: int = -1
    decoded_fd: int = -1
    disk_encoded_fd: int = -1
    disk_decoded_fd: int = -1
    jpeg_index_fd: int = -1
    mapped: dict[str, int] = field(default_factory=dict)
    remote_files: RemoteFiles | None = None
    identity_fd: int = -1
    names: bytes = b""

    def descriptors(self) -> dict[str, int]:
        """Returns the descriptors that have to be open in the process, by field."""
        always = ("control_fd", "data_fd", "table_fd", "message_fd")
        names = (*always, "event_fd", "identity_fd", *(f"{name}_fd" for name in DESCRIPTORS))
        fields = {name: getattr(self, name) for name in names}
        return {name: fd for name, fd in fields.items() if fd >= 0}


def main(config: NativeWorkerConfig) -> None:
    """Serves until the manager stops the queue or the training process has ended."""
    NativeWorker(config).serve()


def _stores(config: NativeWorkerConfig) -> OpenHandles | None:
    fds = {name: getattr(config, f"{name}_fd") for name in DESCRIPTORS}
    there = {name: fd for name, fd in fds.items() if fd >= 0}
    return StoreHandles(there, config.mapped).open() if there else None


def _decoded(file: IO[bytes]) -> memoryview:
    """Returns Pillow's pixels, height x width x 3, as torchvision's default loader makes them."""
    from PIL import Image

    with Image.open(file) as image:
        return memoryview(rgb_bytes(image)).cast("B", (image.height, image.width, 3))


class NativeWorker:
    """Runs the native loop on a loader's queue, and handles its events in Python."""

    def __init__(self, config: NativeWorkerConfig, pool: _native.WorkerQueue | None = None) -> None:
        """``pool`` is the queue of the pool that the worker belongs to, if any."""
        self._config = config
        self.queue = _native.WorkerQueue(config.control_fd, config.data_fd, config.worker)
        table = _native.SharedMapping(config.table_fd, 0, config.table_bytes)
        self._executor = make_executor(config.plan, max_pixels=config.max_pixels)
        self._stores = _stores(config)
        parent = config.parent or os.getppid()
        self._loop = _native.PlanWorker(
            self.queue,
            table,
            self._executor,
            parent,
            config.event_fd,
            None if self._stores is None else self._stores.native,
            pool,
            config.remote_files is not None,
        )
        self._made_fetcher: FileFetcher | None = None
        self._names: SampleNames | None = None
        self._made_assignments: PlanAssignments | None = None
        self._knows_formats = False
        self.queue.announce(os.getpid())

    def serve(self, once: bool = False) -> WorkerEvent:
        """Works until the native loop ends, with ``once`` for one claim; returns why it ended."""
        while True:
            event = self._loop.run(once)
            if event is WorkerEvent.SAMPLE:
                self._serve_sample()
            elif event is WorkerEvent.FETCH:
                self._fetch()
            elif event is WorkerEvent.ASSIGNMENT:
                self._assignments.follow()
            else:
                if event is WorkerEvent.RECALLED:
                    self.close()
                return event

    def rest(self, seen: int) -> None:
        """Sleeps until there may be work, of this rank or another."""
        self._loop.rest(seen)

    def close(self) -> None:
        if self._made_assignments is not None:
            self._made_assignments.detach()

    @property
    def _assignments(self) -> PlanAssignments:
        if self._made_assignments is None:
            # Imported late: sockets are not needed before the first assignment.
            from fusionloader.workers.assignments import PlanAssignments

            address, plan = self._config.address, self._config.plan
            self._made_assignments = PlanAssignments(self._loop, address, plan, self._executor)
        return self._made_assignments

    @property
    def _fetcher(self) -> FileFetcher:
        if self._made_fetcher is None:
            assert self._config.remote_files is not None
            self._made_fetcher = self._config.remote_files.open(
                self._config.identity_fd, self._file_range
            )
        return self._made_fetcher

    def _fetch(self) -> None:
        """Fetches the files of the next tiny-batch from other machines for the loop."""
        for file in self._fetcher.bring(self._loop.missing()):
            self._loop.supply(*file)

    def _fetch_again(self, item: int) -> bool:
        """Fetches a sample at a URL once more if it is missing; returns whether the loop got it.

        Raises:
            Exception: error of the fetcher.
        """
        if not (self._loop.is_remote() and 0 <= item < self._loop.items()):
            return False
        if self._loop.encoded():  # the loop has the bytes, and Pillow has to decode them
            return False
        data = self._read_url(item)
        self._loop.supply(item, len(data), 0, data, False, 0.0)
        return True

    def _read_url(self, item: int) -> bytes | memoryview:
        fetcher = self._fetcher
        if not isinstance(fetcher, RangeFetcher):
            raise TypeError(f"{type(fetcher).__name__} cannot read URLs: it has no read(item)")
        where = self._file_range(item)
        data = fetcher.read(item)
        if len(data) != where.nbytes:
            raise ShardChanged(
                f"{where.file!r} gave {len(data)} bytes for {where.nbytes} from byte "
                f"{where.offset}: index it again"
            )
        return data

    def _file_range(self, item: int) -> FileRange:
        return FileRange.of(self._loop.range(item))

    def _serve_sample(self) -> None:
        """Makes the sample that the native loop could not make."""
        at = self._loop.current()
        try:
            if self._fetch_again(at.item):
                return  # the loop makes the sample
            self._write(at, at.item)
        except Exception as error:
            if self._loop.is_borrowed:  # a worker of that rank repeats it and reports the failure
                self._loop.give_back()
                return
            where = f"in {self._serves()} worker process {self._config.worker}"
            failure = sample_errors.capture(error, where, self._name(at), at.row)
        else:
            self._loop.sample_done()
            return
        try:
            found = resolve(
                self._config.on_error,
                failure,
                (at.seed, at.epoch, at.key, at.occurrence),
                self._loop.items(),
                lambda item: self._write(at, item),
            )
        except BadSample as bad:
            failed = messages.TinyBatchFailed(at.sequence, at.tiny_batch, bad.failure)
            messages.send(self._config.message_fd, failed)
            self._loop.sample_failed()
            return
        skipped = messages.SampleSkipped(at.sequence, at.row, found.index, failure)
        messages.send(self._config.message_fd, skipped)
        self._loop.sample_skipped()

    def _serves(self) -> str:
        return "Preprocessor" if self._loop.comes_encoded else "DataLoader"

    def _write(self, at: _native.CurrentSample, item: int) -> None:
        """Runs the plan on the pixels of ``item`` and writes the sample's row."""
        if self._loop.comes_encoded:
            self._set_up_pillow()
            self._run(at, _decoded(io.BytesIO(self._loop.encoded())))
            self._loop.count_pillow_sample()
            return
        if not 0 <= item < self._loop.items():
            raise IndexError(f"the dataset has {self._loop.items()} samples and no such index")
        pixels = self._loop.pixels(item) if self._loop.holds_pixels() else self._decode(at, item)
        self._run(at, pixels)
        self._loop.set_target(self._loop.target(item))
        if not self._loop.holds_pixels():
            self._loop.count_pillow_sample()

    def _run(self, at: _native.CurrentSample, pixels: memoryview) -> None:
        executor = self._assignments.executor if self._loop.is_borrowed else self._executor
        row = self._loop.image(executor.result_bytes)
        executor.run_pixels(pixels, at.seed, at.epoch, at.key, at.occurrence, row, at.group)

    def _set_up_pillow(self) -> None:
        """Gives Pillow the settings of the training process, which a spawned process lacks."""
        from PIL import Image, ImageFile

        ImageFile.LOAD_TRUNCATED_IMAGES = self._config.load_truncated
        Image.MAX_IMAGE_PIXELS = self._config.max_pixels
        if not self._knows_formats:
            self._config.formats.register()
            self._knows_formats = True

    def _decode(self, at: _native.CurrentSample, item: int) -> memoryview:
        self._set_up_pillow()
        read = self._decode_read() if item == at.item else None  # else it is a substitute
        if read is None:
            return self._decode_file(item)
        assert read.shape is not None
        height, width, _ = read.shape
        self._cache(item, (width, height), read.cast("B"))
        return read

    def _decode_read(self) -> memoryview | None:
        """Returns the pixels of the bytes that the loop has; ``None`` if they are no image."""
        from PIL import UnidentifiedImageError

        encoded = self._loop.encoded()
        # Suppressed because decoding the file itself raises the same error with the file's name.
        with contextlib.suppress(UnidentifiedImageError):
            return _decoded(io.BytesIO(encoded)) if encoded else None
        return None

    def _decode_file(self, item: int) -> memoryview:
        where = self._file_range(item)
        if not where.nbytes:
            with open_file(where.file) as file:
                return _decoded(file)
        data = self._read_url(item) if self._loop.is_remote() else read_range(where)
        return _decoded(io.BytesIO(data))

    def _cache(self, item: int, size: tuple[int, int], pixels: memoryview) -> None:
        # With LOAD_TRUNCATED_IMAGES pixels may be filled in; other jobs may not allow that.
        if self._stores is None or self._config.load_truncated:
            return
        views, stamp = self._stores.views, self._loop.stamp()
        if not self._stores.native.wants_pixels(item):
            return
        for name in ("decoded", "disk_decoded"):
            if name in views and views[name].put(item, *stamp, *size, pixels):
                filled = cache_counts.nothing()
                filled[cache_counts.FILLED] = 1
                self.queue.add_reads(0, filled)
                return

    def _name(self, at: _native.CurrentSample) -> str:
        if self._loop.comes_encoded:
            return f"key {at.key}"
        if self._loop.holds_pixels() or not 0 <= at.item < self._loop.items():
            return f"index {at.key}"
        where = self._file_range(at.item)
        name = where.file
        if where.nbytes and self._config.names:
            if self._names is None:
                self._names = pickle.loads(self._config.names)
            name = self._names.name(where.file, where.offset, at.item)
        return f"index {at.key} ({name})"

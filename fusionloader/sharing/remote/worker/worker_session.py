"""A loader's connection to a remote worker: a setup, then requests for samples."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple

import fusionloader
from fusionloader import _native
from fusionloader.sharing.remote import protocol
from fusionloader.sharing.remote.protocol import (
    CodeSetup,
    DataMode,
    Declined,
    MalformedMessage,
    Ready,
    Reason,
    Rows,
    Setup,
    WantedSample,
    WorkRequest,
    decode_range,
)
from fusionloader.sharing.remote.user_code.bundle import NotMade
from fusionloader.sharing.remote.user_code.store import CodeStore, NotBrought, NotLoaded
from fusionloader.sharing.remote.worker.known_files import compare_file
from fusionloader.sharing.remote.worker.reading import (
    EncodedCache,
    FileReader,
    TooLarge,
    Unavailable,
)
from fusionloader.system.transport.messages import Message, Outgoing, refusal
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.exchange import plan_from_data

if TYPE_CHECKING:
    from fusionloader.sharing.remote.user_code.samples import SampleMaker

_MOST_KNOWN_FILES = 256
_LONGEST_PATH = 4096  # bytes, Linux's PATH_MAX


class WorkerCounts(NamedTuple):
    """What requests came to.

    Attributes:
        requests: number of requests for samples that were answered, declined ones included.
        samples: number of samples that were prepared.
        declined: number of requests that were declined.
        bytes_read: number of bytes read from files.
        bytes_sent: number of bytes of results.
    """

    requests: int = 0
    samples: int = 0
    declined: int = 0
    bytes_read: int = 0
    bytes_sent: int = 0


class SetupRefused(Exception):
    """This worker cannot do a loader's work; the text completes "the remote worker ..."."""


class _SampleDeclined(Exception):
    """A sample is left to the loader's machine."""

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class WorkerSession:
    """Answers the messages of one connection, one at a time.

    Results share one buffer, which is free again when the next request is read.
    """

    def __init__(
        self,
        ready: Ready,
        core: AbstractContextManager[object],
        done: Callable[[WorkerCounts], None],
        cache: EncodedCache | None = None,
        code: CodeStore | None = None,
    ) -> None:
        """Begins without a setup.

        Args:
            ready: answer to a setup.
            core: entered for as long as a core is needed.
            done: called with the outcome of each request.
            cache: cache of files that are read, if any.
            code: user code that Ray has brought; ``None`` for a worker that runs plans only.
        """
        self._ready = ready
        self._core = core
        self._done = done
        self._setup: Setup | None = None
        self._executor: _native.Executor | None = None
        self._code = code
        self._maker: SampleMaker | None = None
        self._files = FileReader(cache)
        self._rows = memoryview(bytearray())

    def answer(self, message: Message) -> Outgoing:
        try:
            if message.kind == protocol.SETUP:
                return self._begin(message.head)
            if message.kind == protocol.SETUP_CODE:
                return self._begin_code(message.head)
            if message.kind == protocol.PREPARE:
                return self._prepare(
                    WorkRequest.decode(message.head, len(message.body)), message.body
                )
        except MalformedMessage as error:
            return refusal(f"refuses what it was asked: {error}")
        except SetupRefused as error:
            return refusal(str(error))
        return refusal(f"does not know messages of kind {message.kind}")

    # ---- SETUP ---------------------------------------------------------------------------------

    def _begin(self, head: bytes) -> Outgoing:
        self._forget()
        setup = Setup.decode(head)
        _require_version(setup.version)
        with self._core:
            executor = _make_executor(setup)
            if setup.row_bytes != executor.result_bytes or setup.row_bytes > protocol.MOST_BODY:
                raise SetupRefused(
                    f"makes results of {executor.result_bytes} bytes of this plan, and "
                    f"{setup.row_bytes} are wanted"
                )
            _require_same_data(setup)
        self._setup, self._executor = setup, executor
        return Outgoing(protocol.READY, self._ready.encode())

    def _begin_code(self, head: bytes) -> Outgoing:
        self._forget()
        setup = CodeSetup.decode(head)
        _require_version(setup.version)
        if self._code is None:
            raise SetupRefused("runs plans only: user code is for workers that Ray has started")
        try:
            bundle = self._code.obtain(setup.digest)
            with self._core:
                self._maker = self._code.maker(bundle, setup)
        except NotBrought as error:
            raise SetupRefused(f"{protocol.NO_CODE}: {error}") from None
        except NotLoaded as error:
            raise SetupRefused(str(error)) from None
        return Outgoing(protocol.READY, self._ready.encode())

    def _forget(self) -> None:
        """Drops the setup, which does not come back if the next one is refused."""
        self._setup = self._executor = self._maker = None

    # ---- PREPARE -------------------------------------------------------------------------------

    def _prepare(self, request: WorkRequest, body: memoryview) -> Outgoing:
        if request.mode is DataMode.INDICES:
            return self._prepare_code(request, body)
        start = time.monotonic_ns()
        if self._setup is None or self._executor is None:
            raise MalformedMessage("PREPARE comes after SETUP")
        parts = list(_parts(request, body, self._setup))
        row_bytes = self._setup.row_bytes
        nbytes = row_bytes * len(parts)
        if nbytes > protocol.MOST_BODY:
            raise MalformedMessage(f"{len(parts)} results have {nbytes} bytes")
        if nbytes > len(self._rows):
            self._rows = memoryview(bytearray(nbytes))
        done = WorkerCounts(requests=1)
        read_before = self._files.bytes_read
        try:
            with self._core:
                for place, (sample, data) in enumerate(parts):
                    out = self._rows[place * row_bytes : (place + 1) * row_bytes]
                    self._make(request, sample, data, out)
            done = done._replace(samples=len(parts), bytes_sent=nbytes)
        except _SampleDeclined as error:
            done = done._replace(declined=1)
            declined = Declined(request.number, error.reason, str(error))
            return Outgoing(protocol.DECLINED, declined.encode())
        finally:
            done = done._replace(bytes_read=self._files.bytes_read - read_before)
            self._done(done)
        rows = Rows(request.number, time.monotonic_ns() - start, done.bytes_read)
        return Outgoing(protocol.ROWS, rows.encode(), [self._rows[:nbytes]])

    def _prepare_code(self, request: WorkRequest, body: memoryview) -> Outgoing:
        start, done = time.monotonic_ns(), WorkerCounts(requests=1)
        if self._maker is None:
            raise MalformedMessage("PREPARE of indices comes after SETUP_CODE")
        try:
            with self._core:
                rows = self._maker.make(request, body)
            nbytes = sum(map(len, rows))
            done = done._replace(samples=len(request.samples), bytes_sent=nbytes)
        except NotMade as error:
            done = done._replace(declined=1)
            declined = Declined(request.number, Reason.SAMPLES, str(error))
            return Outgoing(protocol.DECLINED, declined.encode())
        finally:
            self._done(done)
        answer = Rows(request.number, time.monotonic_ns() - start, read_bytes=0)
        return Outgoing(protocol.ROWS, answer.encode(), rows)

    def _make(
        self, request: WorkRequest, sample: WantedSample, data: memoryview, out: memoryview
    ) -> None:
        """Writes a sample's result to ``out``, or raises ``_SampleDeclined``."""
        assert self._executor is not None
        draws = (request.seed, request.epoch, sample.key, sample.occurrence)
        try:
            if request.mode is DataMode.PIXELS:
                self._executor.run_pixels(data, *draws, out, sample.group)
                return
            if request.mode is DataMode.PATHS:
                data = self._files.read(bytes(data), sample.file_bytes)
            elif request.mode is DataMode.RANGES:
                offset, file_bytes, path = decode_range(bytes(data))
                data = self._files.read_range(path, file_bytes, offset, sample.file_bytes)
            status = self._executor.run(data, *draws, out, sample.group)
        except Unavailable as error:
            raise _SampleDeclined(Reason.DATA, str(error)) from None
        except TooLarge as error:
            raise _SampleDeclined(Reason.SAMPLES, str(error)) from None
        except Exception as error:  # the loader's machine makes the sample and reports the error
            text = f"sample {sample.key}: {type(error).__name__}: {error}"
            raise _SampleDeclined(Reason.SAMPLES, text) from None
        if status is not _native.RunStatus.OK:
            raise _SampleDeclined(Reason.SAMPLES, f"sample {sample.key} is for Pillow to decode")


def _require_version(wanted: str) -> None:
    if wanted != fusionloader.__version__:
        raise SetupRefused(
            f"has fusionloader {fusionloader.__version__}, and the loader has {wanted[:40]}: "
            "install the same on both machines"
        )


def _make_executor(setup: Setup) -> _native.Executor:
    if not setup.pillow:
        raise MalformedMessage("SETUP does not say whose pixels are wanted")
    try:
        plan = plan_from_data(setup.plan)
        return make_executor(plan, setup.pillow, max_pixels=setup.max_pixels)
    except (ValueError, TypeError) as error:
        raise SetupRefused(f"does not take this plan: {error}") from None


def _require_same_data(setup: Setup) -> None:
    if len(setup.known_files) > _MOST_KNOWN_FILES:
        raise MalformedMessage(f"SETUP has {len(setup.known_files)} files")
    for known in setup.known_files:
        try:
            _require_absolute(os.fsencode(known.path))
        except UnicodeEncodeError:
            raise MalformedMessage(f"{known.path!r} is no path") from None
        why = compare_file(known)
        if why is not None:
            raise SetupRefused(f"{protocol.OTHER_DATA}: {why}")


def _parts(
    request: WorkRequest, body: memoryview, setup: Setup
) -> Iterator[tuple[WantedSample, memoryview]]:
    """Yields each sample with its path, its bytes, or its pixels with their shape."""
    begin = 0
    for sample in request.samples:
        data = body[begin : begin + sample.body_bytes]
        begin += sample.body_bytes
        if request.mode is DataMode.PATHS:
            _require_absolute(bytes(data[: _LONGEST_PATH + 1]))
        elif request.mode is DataMode.RANGES:
            _require_absolute(decode_range(bytes(data))[2])
        if request.mode is DataMode.PIXELS:
            data = _shaped(data, setup.image)
        yield sample, data


def _require_absolute(path: bytes) -> None:
    if len(path) > _LONGEST_PATH:
        raise MalformedMessage(f"a path has more than {_LONGEST_PATH} bytes")
    if not path.startswith(b"/"):
        raise MalformedMessage(f"{os.fsdecode(path)!r} is no absolute path")


def _shaped(data: memoryview, image: tuple[int, int, int] | None) -> memoryview:
    if image is None:
        raise MalformedMessage("PREPARE has pixels, and SETUP says no shape of theirs")
    height, width, channels = image
    if height * width * channels != len(data):
        raise MalformedMessage(f"PREPARE has an image of {len(data)} bytes, which is not {image}")
    return data.cast("B", image)

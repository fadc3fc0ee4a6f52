"""Files of timelines: which format, opened before anything is recorded, written and read again."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fusionloader.observe.trace import chrome_file, perfetto_file
from fusionloader.observe.trace.errors import TraceError
from fusionloader.observe.trace.timeline import Timeline


class _Format(NamedTuple):
    dumped: Callable[[Timeline], bytes]
    loaded: Callable[[bytes], Timeline]
    check: Callable[[], object]


def _gzipped(timeline: Timeline) -> bytes:
    return gzip.compress(chrome_file.dumped(timeline), compresslevel=6)


def unzipped(contents: bytes) -> bytes:
    """Returns what gzip has packed.

    Raises:
        TraceError: it is cut off, or not gzip's.
    """
    try:
        return gzip.decompress(contents)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(f"is cut off, or not packed by gzip: {error}") from None


_PERFETTO = _Format(perfetto_file.dumped, perfetto_file.loaded, perfetto_file.protos)
_FORMATS = {
    ".pftrace": _PERFETTO,
    ".perfetto-trace": _PERFETTO,
    ".json": _Format(chrome_file.dumped, chrome_file.loaded, lambda: None),
    ".json.gz": _Format(
        _gzipped, lambda contents: chrome_file.loaded(unzipped(contents)), lambda: None
    ),
}


def _format_of(path: str) -> _Format:
    for ending, found in _FORMATS.items():
        if path.endswith(ending):
            return found
    raise ValueError(
        f"the name of a trace says its format by its end: {', '.join(_FORMATS)}; {path!r} has none "
        "of these"
    )


class TraceFile:
    """A file that a trace will be written to: open and empty from the beginning.

    So a path that cannot be written is an error before training, not after it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens it.

        Raises:
            ValueError: its name does not say which format.
            ImportError: the format needs a package that is not there.
            OSError: it cannot be written.
        """
        self.path: Path = Path(path).absolute()
        self._format = _format_of(os.fspath(path))
        self._format.check()
        self._file = open(self.path, "wb")  # noqa: SIM115  # until write()

    def write(self, timeline: Timeline) -> None:
        """Writes the timeline, and closes the file.

        Raises:
            OSError: there is no room for it.
        """
        try:
            with self._file:
                self._file.write(self._format.dumped(timeline))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error


def write_timeline(timeline: Timeline, path: str | os.PathLike[str]) -> None:
    """Writes a timeline in the format that the name of the file says.

    Raises:
        ValueError: its name does not say which.
        ImportError: the format needs a package that is not there.
        OSError: it cannot be written.
    """
    TraceFile(path).write(timeline)


def read_timeline(path: str | os.PathLike[str]) -> Timeline:
    """Reads a trace that ``FusionLoader.trace`` has written.

    Raises:
        TraceError: it is empty, cut off, or no trace of a loader.
        ValueError: its name does not say which format it has.
        ImportError: the format needs a package that is not there.
        OSError: it cannot be read.
    """
    found = _format_of(os.fspath(path))
    contents = Path(path).read_bytes()
    try:
        if not contents:
            raise TraceError(
                "is empty: its trace is still on, or the process that recorded it was killed"
            )
        return found.loaded(contents)
    except TraceError as error:
        raise TraceError(f"{os.fspath(path)} {error}") from None

"""All loaders of a training under analysis: found as they are made, watched as they are used."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import DataLoader

from fusionloader.cli.analysis.errors import AnalysisDone
from fusionloader.cli.analysis.files import FileCacheLimit
from fusionloader.cli.analysis.iterator import WatchedIterator
from fusionloader.cli.analysis.probes import samples_of
from fusionloader.cli.analysis.ranks import AnalyzedRanks
from fusionloader.cli.analysis.watched import WatchedLoader, WatchedProgress
from fusionloader.options.aliases import AnyLoader

_LIBRARIES = (str(Path(torch.__file__).parent), str(Path(__file__).parents[2] / "loader.py"))
_HERE = str(Path(__file__).parent)


class Session:
    """Hooks ``DataLoader``, and so its subclasses, while a script runs.

    Only in the process that made it: in children (workers, and what a script forks) loaders are
    as ever.
    """

    def __init__(
        self,
        seconds: float,
        measured: Callable[[WatchedLoader], None],
        announce: Callable[[str], None],
        file_cache: FileCacheLimit,
        ranks: AnalyzedRanks,
    ) -> None:
        """``measured`` is called with each loader that has no phase left.

        Args:
            seconds: duration of each window.
            measured: what is to be measured of the loader besides, while the script waits.
            announce: is told of each phase that begins.
            file_cache: what the file cache holds of the files, in ``Phase.COLD``.
            ranks: all of the job; a loader that one of them does not iterate is left alone.
        """
        self._seconds, self._measured, self._announce = seconds, measured, announce
        self._file_cache, self._ranks = file_cache, ranks
        self._process = os.getpid()
        self._used_in_child = mmap.mmap(-1, 1)  # shared with what the script forks
        self.progress: dict[str, WatchedProgress] = {}
        self._made: WeakKeyDictionary[AnyLoader, str] = WeakKeyDictionary()
        self._watched: dict[str, WatchedLoader] = {}
        self._places: dict[str, list[_Likeness]] = {}
        self._ended = self._paused = False
        self._iter: Callable[[AnyLoader], Iterator[Any]] = DataLoader.__iter__

    @property
    def used_in_child(self) -> bool:
        """Whether a forked process has iterated a loader."""
        return self._used_in_child[0] != 0

    @property
    def here(self) -> bool:
        """Whether this is the process under analysis."""
        return os.getpid() == self._process

    @property
    def places(self) -> list[str]:
        """Where loaders were made."""
        return [
            _numbered(place, n) for place, like in self._places.items() for n in range(len(like))
        ]

    @property
    def counted(self) -> int:
        """Steps that were measured."""
        return sum(
            window.result.steps
            for progress in self.progress.values()
            for window in progress.windows.values()
            if window.result is not None
        )

    @property
    def steps(self) -> int:
        """Steps of training on all loaders."""
        return sum(progress.steps for progress in self.progress.values())

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """One run of the script: loaders made within are found."""
        init, self._iter = DataLoader.__init__, DataLoader.__iter__
        session = self
        self._ended = False

        @functools.wraps(init)  # frameworks look at the signature
        def made(loader: AnyLoader, *arguments: Any, **named: Any) -> None:
            init(loader, *arguments, **named)
            session._note(loader)

        def iterated(loader: AnyLoader) -> Iterator[Any]:
            return session._iterate(loader)

        DataLoader.__init__, DataLoader.__iter__ = made, iterated  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            DataLoader.__init__, DataLoader.__iter__ = init, self._iter  # type: ignore[method-assign]
            for watched in self._watched.values():
                watched.close()
            self._watched.clear()
            self._made.clear()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Loaders made and iterated within are the analysis' own."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def _note(self, loader: AnyLoader) -> None:
        if self._paused or not self.here:
            return
        self._made[loader] = self._name(loader)

    def _name(self, loader: AnyLoader) -> str:
        """Names a loader by its place, and those that are made there again for each epoch alike."""
        place, like = find_place(sys._getframe(1)), likeness(loader)
        known = self._places.setdefault(place, [])
        if like not in known:
            known.append(like)
        return _numbered(place, known.index(like))

    def _iterate(self, loader: AnyLoader) -> Iterator[Any]:
        if self._paused:
            return self._iter(loader)
        if not self.here:
            self._used_in_child[0] = 1
            return self._iter(loader)
        self.check()
        place = self._made.get(loader) or self._name(loader)
        if not self._ranks.join(place):
            return self._iter(loader)
        watched = self._watch(loader, place)
        if watched.finished and self._agreed(self._all_measured()):
            self._end()
        with self.paused():
            watched.advance()
            return WatchedIterator(watched, lambda: self._iter(loader), self)

    def _agreed(self, what: bool) -> bool:
        """Whether it is so on all ranks, whose scripts are to end at the same step."""
        return all(self._ranks.meet("end", what))

    def _watch(self, loader: AnyLoader, place: str) -> WatchedLoader:
        before = self._watched.get(place)
        if before is not None and before.loader is loader:
            return before
        if before is not None:
            before.close()
        progress = self.progress.setdefault(place, WatchedProgress(place, type(loader).__name__))
        self._watched[place] = WatchedLoader(
            loader,
            progress,
            self._seconds,
            self._loader_measured,
            self._announce,
            self._file_cache,
            self._ranks,
        )
        return self._watched[place]

    def _loader_measured(self, watched: WatchedLoader) -> None:
        self._measured(watched)
        unused = set(self._made.values()) - set(self._watched) - set(self._ranks.apart)
        if self._agreed(self._all_measured() and not unused):
            self._end()

    def _all_measured(self) -> bool:
        return all(not progress.left for progress in self.progress.values() if progress.used)

    def _end(self) -> None:
        self._ended = True
        self.check()

    def check(self) -> None:
        """Ends the script, again if it went on."""
        if self._ended:
            raise AnalysisDone


_Likeness = tuple[str, str, str, int | None, int | None]


def likeness(loader: AnyLoader) -> _Likeness:
    """Returns what tells loaders apart that are made by the same line.

    Classes by their names: another run of the script defines them anew.
    """
    loader_kind, dataset, sampler = (
        type(each).__qualname__ for each in (loader, loader.dataset, loader.sampler)
    )
    return loader_kind, dataset, sampler, samples_of(loader), loader.batch_size


def _numbered(place: str, number: int) -> str:
    return place if not number else f"{place} ({number + 1})"


def find_place(frame: FrameType) -> str:
    """Returns file and line of the script's code that a frame serves, beyond torch and loaders."""
    while frame.f_back is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _is_library(name: str) -> bool:
    return name.startswith((*_LIBRARIES, _HERE))

"""Files that user code keeps open: what was opened in this process, up to a number."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Generic, TypeVar

File = TypeVar("File", bound=Hashable)
Handle = TypeVar("Handle")

_SHARE_OF_DESCRIPTORS = 2  # one in so many that a process may have open


class OpenFiles(Generic[File, Handle]):
    """Keeps the files of a dataset open that were used last, such as the decoders of its videos.

    ``files[path]`` returns the handle of a file, which ``open(path)`` has made. It is made when the
    file is asked for in a process for the first time, and again if it was closed meanwhile. At most
    ``most`` files are open; the one that was used least recently is closed before another is
    opened. To close a file means to drop the reference to its handle: code that still uses the
    handle may go on.

    Each process has handles of its own. A forked child neither uses nor closes those of its parent:
    both would share one position in the file, and threads that a handle may have are not in the
    child. A pickled or copied object has no file open, so a dataset that has one can be spawned.

    Threads of a process get the same handle. If two ask for a file at once, it may be opened twice,
    and the second handle is dropped.

    Args:
        open: opens a file; called with what the object was indexed with. To be spawned, a dataset
            needs a function here that can be pickled: a class, a function of a module, or
            ``functools.partial`` of one.
        most: number of files that may be open in a process. There are never more than half of the
            descriptors that a process may have open (``ulimit -n``), which those ``OpenFiles`` of
            it share evenly that have files open.

    Raises:
        ValueError: ``most`` is less than 1.

    Example:
        >>> self.decoders = OpenFiles(VideoDecoder, most=64)  # in __init__
        >>> self.decoders[path].get_frames_at([3, 4])  # in __getitem__
    """

    def __init__(self, open: Callable[[File], Handle], most: int = 64) -> None:
        if most < 1:
            raise ValueError(f"most={most}: at least 1 file has to be open to be read")
        self._open, self._most = open, most
        self._begin()
        _all[id(self)] = self

    def _begin(self) -> None:
        self._handles: OrderedDict[File, Handle] = OrderedDict()  # least recently used first
        # Held by a thread that may come again: from a finalizer, or a handler of a signal.
        self._lock = threading.RLock()

    def __getitem__(self, file: File) -> Handle:
        """Returns the handle of a file; raises what ``open`` raises."""
        with self._lock, contextlib.suppress(KeyError):
            handle = self._handles[file]
            self._handles.move_to_end(file)
            _count(reused=1)
            return handle
        sharing = sum(each is self or len(each) > 0 for each in _here())
        most = min(self._most, max(_most_descriptors() // sharing, 1))
        self._close_all_but(most - 1)
        opened = self._open(file)
        with self._lock:
            handle = self._handles.setdefault(file, opened)  # another thread may have been first
        self._close_all_but(most)
        _count(opened=1)
        return handle

    def __len__(self) -> int:
        """Returns the number of files that are open in this process."""
        return len(self._handles)

    def __iter__(self) -> Iterator[File]:
        """Yields the files that are open in this process."""
        with self._lock:
            return iter(list(self._handles))

    def __contains__(self, file: object) -> bool:
        """Whether a file is open in this process."""
        return file in self._handles

    def close(self) -> None:
        """Closes all files that are open in this process; they are opened again when needed."""
        self._close_all_but(0)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._open, self._most)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._open!r}, most={self._most})"

    def _close_all_but(self, most: int) -> None:
        closed = []  # after the lock is released: to close a file may take long
        with self._lock:
            while len(self._handles) > most:
                closed.append(self._handles.popitem(last=False))

    def _leave_to_parent(self) -> None:
        """Begins anew in a forked child, where the parent's handles are never closed."""
        _of_parents.append(self._handles)
        self._begin()


_all: weakref.WeakValueDictionary[int, OpenFiles[Any, Any]] = weakref.WeakValueDictionary()
_of_parents: list[object] = []
_opened = _reused = 0


def _here() -> list[OpenFiles[Any, Any]]:
    """Returns all of this process; other threads may make some meanwhile."""
    return [each for ref in _all.valuerefs() if (each := ref()) is not None]


def _most_descriptors() -> int:
    try:
        import resource  # only on POSIX; other systems import this module too
    except ImportError:
        return 1 << 30
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limit // _SHARE_OF_DESCRIPTORS if limit != resource.RLIM_INFINITY else 1 << 30


def _count(opened: int = 0, reused: int = 0) -> None:
    global _opened, _reused
    _opened += opened
    _reused += reused


def take_counts() -> tuple[int, int]:
    """Returns how many files were opened, and how many were open already, since the last call."""
    global _opened, _reused
    taken = _opened, _reused
    _opened = _reused = 0
    return taken


def _begin_in_child() -> None:
    take_counts()
    for files in _here():
        files._leave_to_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_in_child)

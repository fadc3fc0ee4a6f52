"""Places for unanswered images. Without a free place a request waits, or is refused."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from fusionloader.addons.inference.errors import PreprocessorClosed, QueueFull
from fusionloader.addons.inference.options import WhenFull

_Waiter: TypeAlias = "tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]"


@dataclass(slots=True, eq=False)
class AdmissionPlaces:
    """The places of a request. They are given back once, even if that is called again."""

    count: int = 0


class Admission:
    """A fixed number of places. Threads wait on a condition, tasks of an event loop await.

    Attributes:
        closed: why nothing is admitted any more; ``None`` while it is open.
    """

    def __init__(self, most: int, when_full: WhenFull, has_room: Callable[[], bool]) -> None:
        """Makes ``most`` places; ``has_room`` returns whether more images may be published."""
        self._most, self._when_full, self._has_room = most, when_full, has_room
        self._taken = 0
        # Blocks enter the lock, not the condition: an exception at the end of a condition's block,
        # which is Python code, would leave it locked for ever.
        self._lock = threading.Lock()
        self._condition = threading.Condition(self._lock)
        self._waiting_tasks: deque[_Waiter] = deque()
        self._making_room: set[int] = set()  # threads
        self.closed: str | None = None
        self._closed_for_begun = False

    @property
    def taken(self) -> int:
        return self._taken

    def makes_room(self, thread: int) -> None:
        """Registers a thread that gives places back, and therefore must not wait for one."""
        self._making_room.add(thread)

    def may_wait(self) -> bool:
        """Whether the calling thread may wait for a place."""
        return threading.get_ident() not in self._making_room

    def take(self, places: AdmissionPlaces, most: int = 1, begun: bool = False) -> int:
        """Takes places for up to ``most`` images and returns how many, at least one.

        Args:
            places: counts the places that have to be given back, also after an exception.
            most: number of images of the request.
            begun: whether other images of the request were admitted; then it is not refused.

        Raises:
            PreprocessorClosed: it was closed meanwhile.
            QueueFull: there is no place, and the request may not wait or would wait for ever.
        """
        with self._lock:
            while True:
                taken = self._try(places, most, begun)
                if taken:
                    return taken
                self._refuse_if_wanted(begun)
                if not self.may_wait():
                    raise QueueFull(
                        f"{self._taken} of {self._most} images wait, and this thread is the one "
                        "that answers them: submit from another thread than that of a callback"
                    )
                try:
                    self._condition.wait()
                except BaseException:  # it may have been woken for a place: wake another one
                    self._wake(1)
                    raise

    async def take_async(self, places: AdmissionPlaces) -> None:
        """Takes a place for one image, without blocking the event loop; raises as ``take``."""
        loop = asyncio.get_running_loop()
        while True:
            with self._lock:
                if self._try(places, 1, begun=False):
                    return
                self._refuse_if_wanted(begun=False)
                waiter = loop, loop.create_future()
                self._waiting_tasks.append(waiter)
            try:
                await waiter[1]
            except asyncio.CancelledError:
                self._leave(waiter)
                raise

    def _leave(self, waiter: _Waiter) -> None:
        with self._lock:
            try:
                self._waiting_tasks.remove(waiter)
            except ValueError:  # it was woken for a place: wake another one
                self._wake(1)

    def _try(self, places: AdmissionPlaces, most: int, begun: bool) -> int:
        if self.closed is not None and (self._closed_for_begun or not begun):
            raise PreprocessorClosed(self.closed)
        taken = min(most, self._most - self._taken) if self._has_room() else 0
        self._taken += taken
        places.count += taken
        return taken

    def _refuse_if_wanted(self, begun: bool) -> None:
        if self._when_full == "raise" and not begun:
            raise QueueFull(
                f"{self._taken} images wait, and max_queued is {self._most}: try again later, or "
                'let requests wait with when_full="wait"'
            )

    def give_back(self, places: AdmissionPlaces) -> None:
        with self._lock:
            count = places.count
            self._taken -= count
            places.count = 0
            self._wake(count)

    def look_again(self) -> None:
        """Wakes waiters, because ``has_room`` may have changed."""
        with self._lock:
            self._wake(self._most)

    def _wake(self, count: int) -> None:
        self._condition.notify(count)
        while count > 0 and self._waiting_tasks:
            loop, future = self._waiting_tasks.popleft()
            with contextlib.suppress(RuntimeError):  # its loop was closed: wake the next one
                loop.call_soon_threadsafe(_wake_task, future)
                count -= 1

    def close(self, why: str, also_begun: bool = False) -> None:
        """Refuses new requests with ``why``; with ``also_begun`` the rest of begun ones, too."""
        with self._lock:
            self.closed = why
            self._closed_for_begun |= also_begun
            self._condition.notify_all()
            self._wake(len(self._waiting_tasks))


def _wake_task(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

"""torch's worker loop, whose workers know the states of their datasets.

A state is loaded before the first mini-batch and sent along with each: the loop's queue is wrapped,
and the making of its fetcher.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info
from torch.utils.data.dataloader import _DatasetKind

from fusionloader.transforms.executors.fetchers import fetcher_state, make_fetcher

# The places of the queues of tasks and of results among the arguments of torch's worker loop.
_TASKS, _QUEUE = 2, 3


class Stamped(NamedTuple):
    """The number of a task, with what a worker tells beside its mini-batch.

    ``state`` is the pickled state of the dataset after it, ``None`` where it has none. ``seconds``
    went by from when the worker got the task.
    """

    task: int
    state: bytes | None
    seconds: float


class StampingContext:
    """A multiprocessing context whose processes begin with ``serve``."""

    def __init__(self, context: Any, states: list[bytes | None]) -> None:
        """``states`` are those that workers' datasets go on from; ``None`` where one begins."""
        self._context, self._states = context, iter(states)

    def Process(self, target: Any, args: tuple[Any, ...]) -> Any:
        """Returns a process that runs torch's worker loop."""
        return self._context.Process(target=serve, args=(next(self._states), target, args))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def serve(state: bytes | None, loop: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Runs torch's worker loop; its dataset goes on from ``state``."""
    tasks = _Tasks(arguments[_TASKS])
    stamps = _Stamps(arguments[_QUEUE], tasks)
    _make_fetchers_from(state, stamps)
    loop(*arguments[:_TASKS], tasks, stamps, *arguments[_QUEUE + 1 :])


def _make_fetchers_from(state: bytes | None, stamps: _Stamps) -> None:
    create: Callable[..., Any] = _DatasetKind.create_fetcher
    coming = None if state is None else pickle.loads(state)

    def create_fetcher(kind: Any, dataset: Any, *others: Any) -> Any:
        nonlocal coming
        info = get_worker_info()
        if info is None or info.dataset is not dataset:  # of a loader inside the dataset
            return create(kind, dataset, *others)
        given, coming = coming, None
        stamps.fetcher = make_fetcher(lambda: create(kind, dataset, *others), dataset, given)
        return stamps.fetcher

    _DatasetKind.create_fetcher = staticmethod(create_fetcher)  # type: ignore[method-assign]


class _Tasks:
    """The queue of tasks, which knows when the last one was got."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.got = time.perf_counter()

    def get(self, *arguments: Any, **named: Any) -> Any:
        """Returns the next task."""
        task = self._queue.get(*arguments, **named)
        self.got = time.perf_counter()
        return task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _Stamps:
    """The queue of results, which puts the dataset's state on each."""

    fetcher: Any = None

    def __init__(self, queue: Any, tasks: _Tasks) -> None:
        self._queue, self._tasks = queue, tasks

    def put(self, item: tuple[Any, Any]) -> None:
        """Puts a task's number and result, the number with the state of now."""
        task, data = item
        self._queue.put((self._stamped(task) if type(task) is int else task, data))

    def _stamped(self, task: int) -> Stamped:
        state = None if self.fetcher is None else fetcher_state(self.fetcher)
        # Pickled here: the queue would do it later, in a thread.
        pickled = None if state is None else pickle.dumps(state)
        return Stamped(task, pickled, time.perf_counter() - self._tasks.got)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

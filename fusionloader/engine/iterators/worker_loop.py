"""torch's worker loop, extended by the states of the workers' datasets.

A worker loads a state before its first mini-batch, and sends one with each mini-batch. For that,
the loop's queues and the creation of its fetcher are wrapped.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info
from torch.utils.data.dataloader import _DatasetKind

from fusionloader.transforms.executors.fetchers import fetcher_state, make_fetcher

# Positions of the two queues, of tasks and of results, in the arguments of torch's worker loop.
_TASKS, _QUEUE = 2, 3


class Stamped(NamedTuple):
    """The number of a task, with what a worker reports beside its mini-batch.

    Attributes:
        task: number of the task.
        state: pickled state of the dataset after the task; ``None`` if the dataset has none.
        seconds: time that the task took in the worker.
    """

    task: int
    state: bytes | None
    seconds: float


class StampingContext:
    """A multiprocessing context whose processes begin with ``serve``."""

    def __init__(self, context: Any, states: list[bytes | None]) -> None:
        """``states`` are the workers' pickled dataset states, ``None`` for one that starts new."""
        self._context, self._states = context, iter(states)

    def Process(self, target: Any, args: tuple[Any, ...]) -> Any:
        return self._context.Process(target=serve, args=(next(self._states), target, args))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def serve(state: bytes | None, loop: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """Runs torch's worker loop, with a dataset that resumes from ``state``."""
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
        if info is None or info.dataset is not dataset:  # a loader within the dataset
            return create(kind, dataset, *others)
        given, coming = coming, None
        stamps.fetcher = make_fetcher(lambda: create(kind, dataset, *others), dataset, given)
        return stamps.fetcher

    _DatasetKind.create_fetcher = staticmethod(create_fetcher)  # type: ignore[method-assign]


class _Tasks:
    """The queue of tasks, which records when the last task was received."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue
        self.got = time.perf_counter()

    def get(self, *arguments: Any, **named: Any) -> Any:
        task = self._queue.get(*arguments, **named)
        self.got = time.perf_counter()
        return task

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)


class _Stamps:
    """The queue of results, which adds the dataset's state to each."""

    fetcher: Any = None

    def __init__(self, queue: Any, tasks: _Tasks) -> None:
        self._queue, self._tasks = queue, tasks

    def put(self, item: tuple[Any, Any]) -> None:
        task, data = item
        self._queue.put((self._stamped(task) if type(task) is int else task, data))

    def _stamped(self, task: int) -> Stamped:
        state = None if self.fetcher is None else fetcher_state(self.fetcher)
        # Pickled now: the queue would do it later, in a thread, after the state has changed.
        pickled = None if state is None else pickle.dumps(state)
        return Stamped(task, pickled, time.perf_counter() - self._tasks.got)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

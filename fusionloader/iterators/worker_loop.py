"""torch's worker loop with what it knows nothing of: states of datasets, and deferred images.

A dataset may keep a state itself, or its iterator, or both: it is loaded before the first
mini-batch and sent along with each. The loop's queue is wrapped, and the making of its fetcher.
"""

from __future__ import annotations

import contextlib
import itertools
import pickle
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch._utils import ExceptionWrapper
from torch.utils.data import get_worker_info
from torch.utils.data.dataloader import _DatasetKind

from fusionloader import training_signals
from fusionloader.deferred import counts
from fusionloader.deferred.counts import Counts
from fusionloader.executors.collate import is_of_collate
from fusionloader.resume.stateful import load_state, state_of
from fusionloader.workers import processes

if TYPE_CHECKING:  # torch's workers serve where the native part is missing
    from fusionloader.executors.batch_transport import Receiver, Sends
    from fusionloader.shm.store_handles import StoreHandles

# The places of the queues of tasks and of results, and of collate_fn, among the arguments of
# torch's worker loop.
_TASKS, _QUEUE, _COLLATE = 2, 3, 6

State = dict[str, Any]
"""``dataset`` and ``iterator`` have the states; ``ended`` and ``between`` say when it was taken:
after the worker's last mini-batch of an epoch, or before its first of the one under way."""


class Stamped(NamedTuple):
    """The number of a task, with what a worker tells beside its mini-batch.

    ``state`` is the pickled state of the dataset after it, ``deferred`` what was counted of
    deferred images; ``None`` where there is nothing to tell. ``seconds`` went by from when the
    worker got the task.
    """

    task: int
    state: bytes | None
    deferred: Counts | None
    seconds: float


def fetcher_state(fetcher: Any) -> State | None:
    """Returns the state of a fetcher's dataset and of its iterator; ``None`` if they have none."""
    iterator = getattr(fetcher, "dataset_iter", None)
    own = None if iterator is fetcher.dataset else state_of(fetcher.dataset)
    of_iterator = state_of(iterator)
    if own is None and of_iterator is None:
        return None
    ended = bool(getattr(fetcher, "ended", False))
    return {"dataset": own, "iterator": of_iterator, "ended": ended, "between": False}


def make_fetcher(make: Callable[[], Any], dataset: Any, state: State | None) -> Any:
    """Returns a fetcher of torch's that goes on from ``state``."""
    if state is None:
        return make()
    load_state(dataset, state["dataset"])
    fetcher = make()
    iterator = getattr(fetcher, "dataset_iter", None)
    load_state(iterator, state["iterator"])
    if state["between"]:
        return make() if iterator is not None else fetcher
    if iterator is not None:
        fetcher.ended = state["ended"]
    return fetcher


class StampingContext:
    """A multiprocessing context whose processes begin with ``serve``.

    ``states`` are those that their datasets go on from; ``None`` where these have none.
    ``receiver`` is where batches go, ``None`` where torch sends them; each worker has at most
    ``most`` of them at a time.
    """

    def __init__(
        self,
        context: Any,
        states: list[State | None] | None,
        deferring: StoreHandles | None,
        receiver: Receiver | None,
        most: int,
    ) -> None:
        self._context, self._receiver, self._most = context, receiver, most
        self._states = itertools.repeat(None) if states is None else iter(states)
        self._begin = _Beginning(states is not None, deferring, None, 0)
        if deferring is not None:
            from fusionloader.deferred import patches
            from fusionloader.deferred.rows import collating  # noqa: F401  in training, for all

            patches.prepare()

    def Process(self, target: Any, args: tuple[Any, ...]) -> Any:
        """Returns a process that runs torch's worker loop."""
        method, begin = self._context.get_start_method(), self._begin
        if self._receiver is not None:
            sends = self._receiver.add_worker(self._most)
            begin = begin._replace(sends=sends, parent=processes.parent_of(method))
        arguments = (begin, next(self._states), target, args)
        process = self._context.Process(target=serve, args=arguments)
        return processes.watched(process, method)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class _Beginning(NamedTuple):
    """How a worker begins: with a state or not, with deferred images or not, sending batches.

    ``deferring`` has what deferred images keep of their files, ``None`` where none are deferred.
    ``sends`` and the ``parent`` to end with are not set where the native part is missing.
    """

    stateful: bool
    deferring: StoreHandles | None
    sends: Sends | None
    parent: int


def serve(
    begin: _Beginning, state: State | None, loop: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    """Runs torch's worker loop; its dataset goes on from ``state``."""
    training_signals.leave(interrupts=False)  # the loop ends by them, as torch's
    tasks = _Tasks(arguments[_TASKS])
    stamps = _Stamps(arguments[_QUEUE], tasks)
    if begin.sends is not None:
        from fusionloader.executors.batch_transport import Sender

        processes.exit_with_parent(begin.parent)
        stamps.sender = Sender(begin.sends)
    given = [*arguments[:_TASKS], tasks, stamps, *arguments[_QUEUE + 1 :]]
    if begin.deferring is not None:
        from fusionloader.deferred import kept
        from fusionloader.deferred.loading import begin_in_worker

        begin_in_worker()
        kept.use(kept.OpenStores(begin.deferring))
        if stamps.sender is not None:
            given[_COLLATE] = _collating_in_rows(given[_COLLATE], stamps)
    if begin.stateful:
        _make_fetchers_from(state, stamps)
    with contextlib.nullcontext() if stamps.sender is None else stamps.sender.collating():
        loop(*given)


def _collating_in_rows(collate_fn: Any, stamps: _Stamps) -> Any:
    """Makes samples in rows of batches; returns the function that collates them."""
    from fusionloader.deferred.rows import memory
    from fusionloader.deferred.rows.collating import default_collate

    stamps.rows = memory.BatchRows(stamps.sender)
    memory.use(stamps.rows)
    is_default = is_of_collate(collate_fn, "default_collate")
    return default_collate(stamps.rows) if is_default else collate_fn


def _make_fetchers_from(state: State | None, stamps: _Stamps) -> None:
    create: Callable[..., Any] = _DatasetKind.create_fetcher
    first = True

    def create_fetcher(kind: Any, dataset: Any, *others: Any) -> Any:
        nonlocal first
        info = get_worker_info()
        if info is None or info.dataset is not dataset:  # of a loader inside the dataset
            return create(kind, dataset, *others)
        fetcher = make_fetcher(
            lambda: create(kind, dataset, *others), dataset, state if first else None
        )
        first = False
        stamps.fetcher = fetcher
        return fetcher

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
    sender: Any = None
    rows: Any = None

    def __init__(self, queue: Any, tasks: _Tasks) -> None:
        self._queue, self._tasks = queue, tasks

    def put(self, item: tuple[Any, Any]) -> None:
        """Puts a task's number and result, the number with the state of now."""
        task, data = item
        if self.rows is not None:
            self.rows.settle()
        if type(task) is int:
            task = self._stamped(task)
        if self.sender is not None:
            data = self._packed(data)
        self._queue.put((task, data))

    def _packed(self, data: Any) -> Any:
        try:
            return self.sender.pack(data)
        except Exception:
            info = get_worker_info()
            assert info is not None
            where = f"in DataLoader worker process {info.id}, which cannot send its batch"
            return self.sender.pack(ExceptionWrapper(where=where))  # type: ignore[no-untyped-call]

    def _stamped(self, task: int) -> Stamped:
        state = None if self.fetcher is None else fetcher_state(self.fetcher)
        # Pickled here: the queue would do it later, in a thread.
        pickled = None if state is None else pickle.dumps(state)
        deferred = counts.take() if counts.counts() else None
        return Stamped(task, pickled, deferred, time.perf_counter() - self._tasks.got)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)

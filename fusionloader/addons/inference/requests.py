"""Images on their way: what is published, the requests that it is of, the rows that it becomes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from fusionloader.addons.inference.admission import AdmissionPlaces
from fusionloader.system.shm.slots import Owner, Slot
from fusionloader.transforms.executors.layout import Leaf
from fusionloader.workers import messages


@dataclass(slots=True, eq=False)
class RequestJob:
    """Images that were published together: a mini-batch of the queue, a tiny-batch each.

    ``failures`` are by the number of the image, as workers or the queue report them; so are
    ``deaths``, of workers. ``withdrawn``: what is not begun is not done any more.
    """

    keys: Sequence[int]
    sequence: int = -1
    descriptor: Slot | None = None
    order: Sequence[int] = (0,)
    failures: dict[int, messages.Failure] = field(default_factory=dict)
    deaths: dict[int, int] = field(default_factory=dict)
    withdrawn: bool = False


@dataclass(slots=True, eq=False)
class RequestRows:
    """A slot for ``count`` results of one shape."""

    slot: Slot
    owner: Owner
    leaf: Leaf
    count: int

    def row(self, number: int) -> torch.Tensor:
        """Returns one row, which keeps the slot."""
        return self._tensor(number, 1).view(self.leaf.shape)

    def batch(self, count: int) -> torch.Tensor:
        """Returns the first ``count`` rows."""
        return self._tensor(0, count).view((count, *self.leaf.shape))

    def _tensor(self, first: int, count: int) -> torch.Tensor:
        elements = self.leaf.nbytes // self.leaf.dtype.itemsize * count
        at = first * self.leaf.nbytes
        return torch.frombuffer(self.owner, dtype=self.leaf.dtype, count=elements, offset=at)


class ImageFuture(Future[Any]):
    """The result of one image; cancelling it has the image dropped and its place freed."""

    def __init__(self, cancelled: Callable[[ImageRequest], None]) -> None:
        super().__init__()
        self._told = cancelled
        self.request: ImageRequest | None = None

    def cancel(self) -> bool:
        """Cancels the request if it is not answered yet, nor in the hands of the model."""
        before = self.cancelled()
        done = super().cancel()
        request = self.request
        if done and not before and request is not None:
            self._told(request)
        return done


@dataclass(slots=True, eq=False)
class ImageRequest:
    """An image that was submitted by itself. ``keeper`` has to live until it is answered.

    ``batch`` and ``row`` are known when it is published.
    """

    job: RequestJob
    future: ImageFuture
    begun: float
    keeper: object
    places: AdmissionPlaces
    batch: DynamicBatch | None = None
    row: int = -1

    @property
    def dynamic_batch(self) -> DynamicBatch:
        """The batch of a request that was published."""
        assert self.batch is not None
        return self.batch


@dataclass(slots=True, eq=False)
class DynamicBatch:
    """Images that share a slot of rows; ``size`` is known when it is closed."""

    rows: RequestRows
    size: int | None = None
    done: list[ImageRequest] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether it is closed and all images are done or have failed."""
        return self.size is not None and len(self.done) == self.size


@dataclass(slots=True, eq=False)
class Chunk:
    """Neighbours in a list."""

    job: RequestJob
    first: int
    places: AdmissionPlaces


class ListRequest:
    """A list of images that a thread waits for, published in chunks.

    Attributes:
        chunks: in flight, the oldest first.
        failures: of images, by their place in the list, with their keys.
        published: whether no more chunks will come.
        rows: for the results.
    """

    def __init__(self, begun: float) -> None:
        self.chunks: deque[Chunk] = deque()
        self.failures: dict[int, tuple[messages.Failure, int]] = {}
        self.begun = begun
        self.published = False
        self.rows: RequestRows | None = None
        self._lock = threading.Lock()  # what blocks enter, as in Admission
        self._condition = threading.Condition(self._lock)
        self._error: Exception | None = None

    def wait(self, most_chunks: int) -> None:
        """Waits until no more than so many chunks are in flight.

        Raises:
            Exception: it cannot be finished.
        """
        with self._lock:
            self._condition.wait_for(lambda: self._error or len(self.chunks) <= most_chunks)
            if self._error is not None:
                raise self._error

    def chunk_done(self, chunk: Chunk) -> None:
        """Notes that the oldest chunk is done."""
        with self._lock:
            for number, failure in chunk.job.failures.items():
                self.failures[chunk.first + number] = failure, chunk.job.keys[number]
            self.chunks.popleft()
            self._condition.notify_all()

    def fail(self, error: Exception) -> None:
        """Has the thread that waits raise ``error``."""
        with self._lock:
            self._error = error
            self._condition.notify_all()

"""Published images, the requests that they belong to, and the rows of their results."""

from __future__ import annotations

import pickle
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from fusionloader.addons.inference.admission import AdmissionPlaces
from fusionloader.engine.manager.publications import Publication, describe_deaths
from fusionloader.system.shm.slots import Owner, Slot
from fusionloader.transforms.executors.layout import Leaf
from fusionloader.workers import messages


@dataclass(slots=True, eq=False)
class RequestJob(Publication):
    """Images that were published together, one tiny-batch an image.

    Attributes:
        keys: keys of the images, for random draws.
        order: numbers of the images in the order of the tiny-batches.
        overdue: errors of the images that took too long, by tiny-batch.
        withdrawn: whether workers should begin no further image.
    """

    keys: Sequence[int]
    order: Sequence[int] = (0,)
    overdue: dict[int, str] = field(default_factory=dict)
    withdrawn: bool = False

    def is_hopeless(self, tiny_batch: int) -> bool:
        return tiny_batch in self.overdue or Publication.is_hopeless(self, tiny_batch)

    def give_up(self, tiny_batch: int, pid: int | None, manner: str) -> None:
        if tiny_batch in self.overdue:
            self.fail(tiny_batch, TimeoutError, self.overdue[tiny_batch])
            return
        image = f"the image with key {self.key_of(tiny_batch)}"
        text = describe_deaths("Preprocessor worker", pid, manner, image)
        self.fail(tiny_batch, RuntimeError, text)

    def fail(self, tiny_batch: int, error: type[Exception], text: str) -> None:
        self.failures[tiny_batch] = messages.Failure(pickle.dumps(error), text, tiny_batch)

    def key_of(self, tiny_batch: int) -> int:
        return self.keys[self.order[tiny_batch]]


@dataclass(slots=True, eq=False)
class RequestRows:
    """A slot for ``count`` results of one shape."""

    slot: Slot
    owner: Owner
    leaf: Leaf
    count: int

    def row(self, number: int) -> torch.Tensor:
        """Returns one row; the tensor keeps the slot in use."""
        return self._tensor(number, 1).view(self.leaf.shape)

    def batch(self, count: int) -> torch.Tensor:
        """Returns the first ``count`` rows."""
        return self._tensor(0, count).view((count, *self.leaf.shape))

    def _tensor(self, first: int, count: int) -> torch.Tensor:
        elements = self.leaf.nbytes // self.leaf.dtype.itemsize * count
        at = first * self.leaf.nbytes
        return torch.frombuffer(self.owner, dtype=self.leaf.dtype, count=elements, offset=at)


class ImageFuture(Future[Any]):
    """The result of one image. Cancelling it drops the image and frees its place."""

    def __init__(self, cancelled: Callable[[ImageRequest], None]) -> None:
        super().__init__()
        self._on_cancel = cancelled
        self.request: ImageRequest | None = None

    def cancel(self) -> bool:
        """Cancels the request if it is neither answered nor passed to the model."""
        before = self.cancelled()
        done = super().cancel()
        request = self.request
        if done and not before and request is not None:
            self._on_cancel(request)
        return done


@dataclass(slots=True, eq=False)
class ImageRequest:
    """A request for an image that was submitted by itself.

    Attributes:
        job: the published image.
        future: future of the result.
        begun: time of the submission, by ``time.perf_counter``.
        keeper: an object that has to live until the request is answered.
        places: places in the queue that it takes.
        batch: batch of the image; ``None`` before publication.
        row: row of the image in the batch; -1 before publication.
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
        assert self.batch is not None
        return self.batch


@dataclass(slots=True, eq=False)
class DynamicBatch:
    """Images that share a slot of rows; ``size`` is ``None`` until the batch is closed."""

    rows: RequestRows
    size: int | None = None
    done: list[ImageRequest] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        """Whether the batch is closed and all of its images are done or have failed."""
        return self.size is not None and len(self.done) == self.size


@dataclass(slots=True, eq=False)
class Chunk:
    """Neighbouring images of a list, from number ``first`` on."""

    job: RequestJob
    first: int
    places: AdmissionPlaces


class ListRequest:
    """A list of images that a thread waits for, published in chunks.

    Attributes:
        chunks: chunks in flight, the oldest first.
        failures: failures and keys of images, by their position in the list.
        published: whether all chunks were published.
        rows: rows of the results.
    """

    def __init__(self) -> None:
        self.chunks: deque[Chunk] = deque()
        self.failures: dict[int, tuple[messages.Failure, int]] = {}
        self.published = False
        self.rows: RequestRows | None = None
        self._lock = threading.Lock()  # blocks enter the lock, as in Admission
        self._condition = threading.Condition(self._lock)
        self._error: Exception | None = None

    def wait(self, most_chunks: int) -> None:
        """Waits until at most ``most_chunks`` chunks are in flight.

        Raises:
            Exception: the error with which the list has failed.
        """
        with self._lock:
            self._condition.wait_for(lambda: self._error or len(self.chunks) <= most_chunks)
            if self._error is not None:
                raise self._error

    def chunk_done(self, chunk: Chunk) -> None:
        with self._lock:
            job = chunk.job
            for tiny_batch, failure in job.failures.items():
                place = chunk.first + job.order[tiny_batch]
                self.failures[place] = failure, job.key_of(tiny_batch)
            self.chunks.popleft()
            self._condition.notify_all()

    def fail(self, error: Exception) -> None:
        """Raises ``error`` in the waiting thread."""
        with self._lock:
            self._error = error
            self._condition.notify_all()

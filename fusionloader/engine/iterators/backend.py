"""The interface between the slot iterator and the two kinds of workers, native and Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

from fusionloader.data.epochs.sampling import SampledBatch
from fusionloader.engine.delivery.program_rows import RowConversion
from fusionloader.engine.manager.options import StartWorker, WorkerKind
from fusionloader.engine.manager.participant import Participant
from fusionloader.engine.manager.worker_passes import WorkerPasses
from fusionloader.options.aliases import Index
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.transforms.executors.batch_transport import BatchReceiver
from fusionloader.transforms.executors.layout import Layout

NO_ITEM = -1


class Workforce(NamedTuple):
    """What makes a loader's samples.

    Attributes:
        start: starts a worker.
        participants: participants beside the workers.
    """

    start: StartWorker
    participants: Sequence[Participant] = ()


class Described(NamedTuple):
    """The indices of a mini-batch in the form that workers receive, see ``MiniBatch``.

    Attributes:
        items: sample numbers.
        rows: positions in the batch, the smallest sample first, or by file.
        pickled: the pickled indices, where ``items`` do not identify the samples.
        by_file: whether rows of one file are side by side.
    """

    items: list[int]
    rows: list[int]
    pickled: bytes
    by_file: bool = False


class WorkerBackend(Protocol):
    """Describes samples to the slot iterator, and provides their workers.

    Attributes:
        layout: layout of the rows; ``None`` while it is unknown.
        count: number of samples in the dataset.
        worker_kind: what workers run.
        receiver: receives mini-batches that workers make whole; ``None`` if they make samples.
        passes: passes of workers that iterate over the dataset themselves; ``None`` if they do not.
    """

    layout: Layout | None
    count: int
    worker_kind: WorkerKind
    receiver: BatchReceiver | None
    passes: WorkerPasses | None

    def name(self, index: Index) -> str:
        """Returns a sample's name for messages."""

    def describe(self, indices: list[Index]) -> Described:
        """Returns the description of a mini-batch for workers."""

    def workforce(self, options: LoaderOptions, base_seed: int, on_device: bool) -> Workforce:
        """Returns what makes the samples; each call makes new participants, for a new manager.

        ``on_device`` says whether there are device buffers that a participant may write into.
        """

    def look_ahead(self, batches: Iterator[SampledBatch], in_flight: int) -> Iterator[SampledBatch]:
        """Yields the mini-batches of a pass, and announces them to read-ahead before.

        ``in_flight`` is the number of mini-batches published at a time.
        """

    def send_converted(self, has_kernel: Callable[[str], bool]) -> RowConversion | None:
        """Makes workers write rows that the device converts from now on, if possible.

        ``has_kernel`` says whether the device has the kernel of a source file. Returns the
        conversion from rows to samples; ``None`` if workers write samples.
        """

    def no_layout(self, why: str) -> WorkerBackend:
        """Returns a backend whose workers make batches whole, because rows do not work."""

    def epoch_ended(self) -> None:
        """Called when the last batch of an epoch was delivered."""

    def use_workers_dataset(self) -> WorkerBackend:
        """Returns the backend for workers whose ``worker_init_fn`` changes the dataset."""

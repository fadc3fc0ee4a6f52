"""How a loader's samples are made: what the slot iterator asks of either kind of workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from fusionloader.data.epochs.sampling import SampledBatch
from fusionloader.engine.delivery.level_rows import LevelRows
from fusionloader.engine.manager.options import StartWorker, WorkerKind
from fusionloader.engine.manager.participant import Participant
from fusionloader.engine.manager.worker_passes import WorkerPasses
from fusionloader.options.aliases import Index
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.transforms.executors.batch_transport import BatchReceiver
from fusionloader.transforms.executors.layout import Layout

NO_ITEM = -1


class Workforce(NamedTuple):
    """Who makes a loader's samples.

    ``start`` starts a worker; ``participants`` take part beside these.
    """

    start: StartWorker
    participants: Sequence[Participant] = ()


class Described(NamedTuple):
    """The indices of a mini-batch as workers get them.

    ``items`` are numbers; ``rows`` the places in the batch, the smallest sample first; ``pickled``
    are the indices where numbers do not say everything.
    """

    items: list[int]
    rows: list[int]
    pickled: bytes


class WorkerBackend(Protocol):
    """What the slot iterator needs to know of the samples.

    ``worker_kind`` says what workers run: a plan natively, or user code in Python. ``receiver``
    gets mini-batches that workers make whole; ``None`` where they make samples. ``passes`` are
    those of workers that go through the dataset on their own; ``None`` where they do not.
    """

    layout: Layout | None
    count: int
    worker_kind: WorkerKind
    receiver: BatchReceiver | None
    passes: WorkerPasses | None

    def name(self, index: Index) -> str:
        """Returns a sample's name for messages."""

    def describe(self, indices: list[Index]) -> Described:
        """Returns what a worker needs to know of a mini-batch."""

    def workforce(self, options: LoaderOptions, base_seed: int, on_device: bool) -> Workforce:
        """Returns who makes the samples; other participants each time, for another manager.

        With ``on_device`` there are buffers on the device, which a participant may write into.
        """

    def look_ahead(self, batches: Iterator[SampledBatch], in_flight: int) -> Iterator[SampledBatch]:
        """Returns the mini-batches of a pass, announced ahead to what reads for the workers.

        ``in_flight`` are published at a time.
        """

    def send_levels(self, wanted: bool) -> LevelRows | None:
        """Has samples come as 8-bit levels from now on, if ``wanted`` and if they can.

        Returns how levels become samples; ``None`` where these come as they are.
        """

    def no_layout(self, why: str) -> WorkerBackend:
        """Notes that samples cannot be written row by row; returns what makes batches whole."""

    def epoch_ended(self) -> None:
        """Called when the last batch of an epoch was delivered."""

    def of_workers_dataset(self) -> WorkerBackend:
        """Returns the backend for workers whose ``worker_init_fn`` changes the dataset."""

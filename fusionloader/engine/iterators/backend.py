"""How a loader's samples are made: what the slot iterator asks of either kind of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing.context import BaseContext
from typing import NamedTuple, Protocol

import torch

from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.data.epochs.sampling import SampledBatch
from fusionloader.data.read_ahead.read_ahead_process import ReadAheadProcess
from fusionloader.data.sources.streams.settings import ReadSettings
from fusionloader.engine.delivery.level_rows import LevelRows
from fusionloader.engine.manager.options import StartWorker, WorkerConnection, WorkerKind
from fusionloader.engine.manager.worker_passes import WorkerPasses
from fusionloader.gpu.start import GpuOptions
from fusionloader.options.aliases import Index
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.options.remote_settings import Remote
from fusionloader.sharing.jobs.agreement import Agreement
from fusionloader.sharing.pool.pool_processes import Payload
from fusionloader.sharing.ranks.sharing_offer import SharingOffer
from fusionloader.sharing.remote.link import RemoteLink, RemoteTask
from fusionloader.system.processes import Process
from fusionloader.transforms.executors.batch_transport import BatchReceiver, Sends
from fusionloader.transforms.executors.layout import Layout

NO_ITEM = -1

MakeReader = Callable[[DatasetTable, ReadSettings], ReadAheadProcess]
"""Returns the process of a loader that reads a table's URLs."""


MakeSends = Callable[[], Sends]
"""Returns what one more worker sends whole batches by."""


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
    gpu: GpuOptions | None
    sharing_offer: SharingOffer | None
    worker_kind: WorkerKind
    receiver: BatchReceiver | None
    passes: WorkerPasses | None

    def name(self, index: Index) -> str:
        """Returns a sample's name for messages."""

    def describe(self, indices: list[Index]) -> Described:
        """Returns what a worker needs to know of a mini-batch."""

    def starter(self, options: LoaderOptions, base_seed: int) -> StartWorker:
        """Returns the function that starts a worker."""

    def open_reader(self, make: MakeReader) -> None:
        """Has samples at URLs read by a process of the loader."""

    def look_ahead(self, batches: Iterator[SampledBatch], in_flight: int) -> Iterator[SampledBatch]:
        """Returns the mini-batches of a pass, of which that process is told ahead.

        ``in_flight`` are published at a time.
        """

    def send_levels(self, wanted: bool) -> LevelRows | None:
        """Has samples come as 8-bit levels from now on, if ``wanted`` and if they can.

        Returns how levels become samples; ``None`` where these come as they are.
        """

    def no_layout(self, why: str) -> WorkerBackend:
        """Notes that samples cannot be written row by row; returns what makes batches whole."""

    def agreement(self, options: LoaderOptions) -> Agreement:
        """Returns what jobs have to agree on that share preparation."""

    def remote_work(
        self,
        options: LoaderOptions,
        base_seed: int,
        link: Callable[[Remote, int], RemoteLink],
    ) -> RemoteTask | None:
        """Returns what workers on other machines are given; ``None`` where they have no part.

        ``link`` returns the loader's link to these workers.
        """

    def epoch_ended(self) -> None:
        """Called when the last batch of an epoch was delivered."""

    def of_workers_dataset(self) -> WorkerBackend:
        """Returns the backend for workers whose ``worker_init_fn`` changes the dataset."""


def refuse_for_own_passes(options: LoaderOptions, why: str) -> None:
    """Raises ValueError for what a loader cannot do whose workers read the dataset on their own.

    A pool: its workers come and go. And ``on_error``: no sample fails by itself.
    """
    if options.pool is not None:
        raise ValueError(
            "a WorkerPool serves map-style datasets without a state, and not this loader's: "
            f"{why}. Give it other workers: num_workers=... instead of pool=..."
        )
    refuse_on_error(options, why)


def refuse_on_error(options: LoaderOptions, why: str) -> None:
    """Raises ValueError where no sample can be left out or replaced."""
    if options.on_error != "raise":
        raise ValueError(
            f"on_error={options.on_error!r} needs samples that are made one by one, and this "
            f"loader has none: {why}. Catch the error in the dataset or the collate_fn, and leave "
            "on_error as it is"
        )


def start_in_pool(payload: Payload, sends: MakeSends | None = None) -> StartWorker:
    """Returns the function by which a pool's workers serve a loader.

    ``sends`` says where a worker sends the batches that it makes whole.
    """

    def start(connection: WorkerConnection) -> Process:
        fds = {"message_fd": connection.message_fd}
        if sends is not None:
            fds["batches_fd"] = sends().memory.fd
        if connection.event_fd >= 0:
            fds["event_fd"] = connection.event_fd
        assert connection.pool is not None
        return connection.pool.start(connection.number, fds, payload)

    return start


def context_of(options: LoaderOptions) -> tuple[BaseContext, str]:
    """Returns the multiprocessing context of a loader's workers, and its start method."""
    context = options.multiprocessing_context
    if context is None:
        context = torch.multiprocessing.get_context()
    return context, str(context.get_start_method())

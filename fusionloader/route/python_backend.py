"""The backend of Python workers: the user's dataset, or a compiled plan with a Python tail."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial

from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data.dataloader import _get_distributed_settings, _sharding_worker_init_fn

from fusionloader.data.deferred import patches
from fusionloader.data.deferred.sample_source import (
    DeferringSource,
    without_deferral,
    without_descriptors,
)
from fusionloader.data.epochs.sampling import GivenBatch, SampledBatch
from fusionloader.engine.delivery.program_rows import RowConversion
from fusionloader.engine.iterators.backend import NO_ITEM, Described, WorkerBackend, Workforce
from fusionloader.engine.manager.options import StartWorker, WorkerConnection, WorkerKind
from fusionloader.engine.manager.participant import Participant
from fusionloader.engine.manager.worker_passes import WorkerPasses
from fusionloader.options.aliases import Index
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.route.loader_parts import LoaderParts
from fusionloader.route.route import SampleFiles
from fusionloader.route.starting import bind_to_pool, find_context, start_in_pool
from fusionloader.scheduler.tiny_batches import order_by_file
from fusionloader.sharing.jobs.agreement import Agreement, CodeDigests
from fusionloader.sharing.pool.binding import PoolBinding
from fusionloader.sharing.pool.pool_processes import Payload
from fusionloader.sharing.pool.user_code import UserCode
from fusionloader.sharing.ranks.borrowed_workers import BorrowedWorkers
from fusionloader.sharing.ranks.sharing_offer import SharingOffer, SharingOffers
from fusionloader.sharing.remote.remote_proxy import RemoteProxy
from fusionloader.sharing.remote.remote_tasks import code_task
from fusionloader.system import processes
from fusionloader.system.processes import Process
from fusionloader.system.shm.descriptor import Descriptor
from fusionloader.transforms.executors.batch_transport import BatchReceiver
from fusionloader.transforms.executors.layout import Layout
from fusionloader.transforms.executors.python import SampleKey, Source
from fusionloader.workers import python_process
from fusionloader.workers.batch_worker import Collating
from fusionloader.workers.python_worker import PythonWorkerConfig
from fusionloader.workers.sample_errors import summary
from fusionloader.workers.stream_worker import OwnPass

log = logging.getLogger("fusionloader.route")

_ITEMS = range(-(1 << 63), 1 << 63)  # indices that fit a descriptor's int64
_DELIVERED = 4  # whole batches of a worker that training may still use after delivery


def _init_fn(options: LoaderOptions) -> Callable[[int], None] | None:
    """Returns what a worker calls first, which also shards a DataPipe, as torch's loader does."""
    if not isinstance(options.dataset, (IterDataPipe, MapDataPipe)):
        return options.worker_init_fn
    ranks, rank = _get_distributed_settings()  # type: ignore[no-untyped-call]
    return partial(_sharding_worker_init_fn, options.worker_init_fn, ranks, rank)


class FileOrder:
    """Orders the rows of mini-batches by the files of their samples.

    If a file cannot be told, the sample is of none. An index that the dataset does not have is then
    reported as a bad sample of its mini-batch, as without files.
    """

    def __init__(self, files: SampleFiles, tiny_size: int) -> None:
        self._files, self._tiny_size = files, tiny_size
        self._has_warned = False

    def rows(self, indices: Sequence[Index]) -> list[int]:
        """Returns the rows of a mini-batch, those of one file side by side."""
        return order_by_file([self._file(index) for index in indices], self._tiny_size)

    def _file(self, index: Index) -> Hashable:
        try:
            file = self._files(index)
            hash(file)
        except Exception as error:
            if not self._has_warned:
                self._has_warned = True
                log.warning(
                    "sample_file(%r) has failed, and the sample belongs to no file: %s",
                    *(index, summary(error)),
                )
            return None
        return file


class PythonBackend:
    """Makes samples in Python: of the user's dataset, or of a compiled plan with a Python tail."""

    layout: Layout | None = None
    worker_kind: WorkerKind = "python"

    def __init__(
        self,
        source: Source,
        parts: LoaderParts,
        no_layout: Callable[[str], None],
        epoch_ended: Callable[[], None] = lambda: None,
        whole: bool = False,
        passes: WorkerPasses | None = None,
        offers: SharingOffers | None = None,
        order: FileOrder | None = None,
    ) -> None:
        """With ``whole``, workers make whole mini-batches, which user code collates.

        With ``passes``, which needs ``whole``, each worker iterates over the dataset on its own.
        ``offers`` are made to the other ranks of the machine, if user code is to be shared.
        ``order`` orders samples by their files.
        """
        self.passes = passes
        self._source, self._parts, self._no_layout = source, parts, no_layout
        self.epoch_ended, self._offers, self._order = epoch_ended, offers, order
        self.count = source.count()
        self.receiver = BatchReceiver() if whole else None
        self._code: CodeDigests | None = None

    def no_layout(self, why: str) -> PythonBackend:
        self._no_layout(why)
        return PythonBackend(
            self._source,
            self._parts,
            self._no_layout,
            self.epoch_ended,
            whole=True,
            offers=self._offers,
        )

    def use_workers_dataset(self) -> WorkerBackend:
        """Returns ``self``: every worker uses its own dataset anyway."""
        return self

    def look_ahead(self, batches: Iterator[SampledBatch], in_flight: int) -> Iterator[SampledBatch]:
        return batches

    def send_converted(self, has_kernel: Callable[[str], bool]) -> RowConversion | None:
        return None  # samples of user code are sent unchanged

    def name(self, index: Index) -> str:
        return self._source.name(SampleKey(index, 0, 0, 0, 0))

    def describe(self, indices: list[Index]) -> Described:
        """Describes plain integers as items, other indices pickled in the order of the rows.

        The order is the sampler's, or by file.
        """
        if isinstance(indices, GivenBatch):
            count = len(indices)
            return Described([NO_ITEM] * count, list(range(count)), pickle.dumps(indices.given))
        by_file = self._order is not None
        rows = list(range(len(indices))) if self._order is None else self._order.rows(indices)
        if set(map(type, indices)) <= {int} and all(map(_ITEMS.__contains__, indices)):
            return Described(indices, rows, b"", by_file)
        pickled = pickle.dumps([indices[row] for row in rows])
        return Described([NO_ITEM] * len(indices), rows, pickled, by_file)

    def agreement(self, options: LoaderOptions) -> Agreement:
        """Returns what jobs have to agree on that share the preparation of this loader's batches.

        Raises:
            ValueError: user code cannot be compared.
        """
        if self._code is None:  # workers that are kept have the dataset as it was then
            self._code = CodeDigests.of(options)
        return Agreement.of_code(options, self._code)

    def workforce(self, options: LoaderOptions, base_seed: int, on_device: bool) -> Workforce:
        """User code runs on other machines only with ``Remote(user_code=True)``."""
        participants: list[Participant] = []
        is_for_remote = _init_fn(options) is None and self.receiver is None
        if options.remote is not None and options.remote.user_code and is_for_remote:
            source = without_deferral(self._source)
            task = code_task(options, self._parts.link, source, base_seed)
            if task is not None:
                participants.append(RemoteProxy(task))
        address = ""  # where workers are not shared
        if self._offers is not None and (offer := self._offer(self._offers, options)) is not None:
            participants.append(BorrowedWorkers(self._offers, offer))
            address = self._offers.ranks.address
        binding = bind_to_pool(options)
        if binding is not None:
            participants.append(binding)
        return Workforce(self._starter(options, base_seed, binding, address), participants)

    def _offer(self, offers: SharingOffers, options: LoaderOptions) -> SharingOffer | None:
        source = without_deferral(self._source)
        # What a plan is compiled from, since the source has texts for messages, too.
        made_of = type(source), source.dataset, options.decode, options.strict
        code: dict[str, object] = {"dataset": made_of, "worker_init_fn": _init_fn(options)}
        if self.receiver is not None:
            code["collate_fn"] = options.collate_fn, options.auto_collation
        return offers.make_for_code(**code)

    def _starter(
        self, options: LoaderOptions, base_seed: int, binding: PoolBinding | None, address: str
    ) -> StartWorker:
        """Returns a function that starts a worker in a multiprocessing process, or in a pool."""
        init, on_error = _init_fn(options), options.on_error
        source, passes, whole, sends = self._source, self.passes, None, None
        if self.receiver is not None:
            most = options.in_flight + _DELIVERED
            sends = partial(self.receiver.add_worker, most)
            whole = Collating(options.collate_fn, options.auto_collation, most)
        kind, drop_last = options.dataset_kind, options.drop_last
        if binding is not None:
            sent, fds = without_descriptors(source)
            code = UserCode(options.num_workers, sent, base_seed, init, on_error, whole, address)
            return start_in_pool(binding, Payload((code, None), fds, user_code=True), sends)
        context, method = find_context(options)
        if isinstance(source, DeferringSource) and method == "fork":
            patches.prepare()

        def start(connection: WorkerConnection) -> Process:
            made_by: Collating | OwnPass | None = None
            if whole is not None and sends is not None:
                made_by = collating = whole
                if not connection.is_staged:
                    made_by = collating = whole._replace(sends=sends(connection.number))
                if passes is not None:
                    last = passes.last(connection.number)
                    made_by = OwnPass(collating, kind, drop_last, passes.run, last)
            config = PythonWorkerConfig(
                worker=connection.number,
                workers=connection.workers,
                control=Descriptor(connection.control_fd),
                data=Descriptor(connection.data_fd),
                message=Descriptor(connection.message_fd),
                source=source,
                base_seed=base_seed,
                worker_init_fn=init,
                on_error=on_error,
                whole=made_by,
                event=Descriptor(connection.event_fd),
                address=address,
            )
            return processes.start(context, python_process.main, config)

        return start

"""The backend of native workers: a wholly compiled plan on files, or pixels in shared memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import index as as_integer

from PIL import Image, ImageFile

from fusionloader.cache.loader_cache import LoaderCache
from fusionloader.cache.remote_files import RemoteFiles
from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.data.epochs.sampling import SampledBatch
from fusionloader.data.read_ahead.looking_ahead import WantedRange, looking_ahead, read_settings
from fusionloader.data.read_ahead.read_ahead_process import ReadAheadProcess
from fusionloader.data.sources.datasets import Compiled
from fusionloader.data.sources.tables import layout_of
from fusionloader.engine.delivery.level_rows import LevelRows, level_rows, make_levels_plan
from fusionloader.engine.delivery.program_rows import ProgramRows, RowConversion, program_rows
from fusionloader.engine.iterators.backend import NO_ITEM, Described, WorkerBackend, Workforce
from fusionloader.engine.manager.native_start import native_starter
from fusionloader.engine.manager.options import StartWorker, WorkerKind
from fusionloader.engine.manager.participant import Participant
from fusionloader.engine.manager.worker_passes import WorkerPasses
from fusionloader.gpu import eligibility
from fusionloader.gpu.augmentation import DeviceAugmentation
from fusionloader.gpu.control import GpuControl
from fusionloader.gpu.eligibility import GpuChoice
from fusionloader.gpu.start import GpuOptions
from fusionloader.options.aliases import Index
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.route.loader_parts import LoaderParts
from fusionloader.route.starting import bind_to_pool, find_context, start_in_pool
from fusionloader.scheduler.tiny_batches import order_by_size
from fusionloader.sharing.jobs.agreement import Agreement
from fusionloader.sharing.pool.binding import PoolBinding
from fusionloader.sharing.pool.pool_processes import Payload
from fusionloader.sharing.ranks.borrowed_workers import BorrowedWorkers
from fusionloader.sharing.ranks.sharing_offer import SharingOffers
from fusionloader.sharing.remote.remote_proxy import RemoteProxy
from fusionloader.sharing.remote.remote_tasks import remote_task
from fusionloader.transforms.executors.batch_transport import BatchReceiver
from fusionloader.transforms.executors.layout import Layout
from fusionloader.transforms.plan.stages import Plan
from fusionloader.workers.native_worker import NativeWorkerConfig
from fusionloader.workers.pillow_formats import AddedFormats


class NativeBackend:
    """Makes samples of a wholly compiled plan; workers run no Python per sample."""

    def __init__(
        self,
        compiled: Compiled,
        table: DatasetTable,
        choice: GpuChoice,
        parts: LoaderParts,
        cache: LoaderCache,
        use_workers_dataset: Callable[[], WorkerBackend],
        offers: SharingOffers | None = None,
    ) -> None:
        self.use_workers_dataset = use_workers_dataset
        self._cache, self._parts = cache, parts
        self._compiled = compiled
        self._table = table
        self.count = len(table)
        self._choice, self._offers = choice, offers
        self.worker_kind: WorkerKind = "native"
        self.receiver: BatchReceiver | None = None
        self.passes: WorkerPasses | None = None
        assert compiled.plan is not None
        self._whole_plan = compiled.plan
        self._reader: ReadAheadProcess | None = None
        if table.is_remote and (settings := read_settings(compiled.ranged()[0])) is not None:
            self._reader = parts.reader(table, settings)
        self._send(compiled.plan)
        self._augments = False  # whether the device runs the plan's last stages

    def look_ahead(self, batches: Iterator[SampledBatch], in_flight: int) -> Iterator[SampledBatch]:
        """Returns the mini-batches, announced to the process that reads URLs, if there is one."""
        if self._reader is None:
            return batches
        wanted = WantedRange(self._table.sizes, self._item, self._cache.handles())
        return looking_ahead(batches, self._reader, wanted, patience=2 * in_flight)

    def _send(self, plan: Plan) -> None:
        """Makes workers run ``plan`` from now on."""
        layout = layout_of(plan)
        assert isinstance(layout, Layout)
        offer = None if self._offers is None else self._offers.make(plan, self._table)
        gpu = self._gpu_options(plan)
        # No call follows, so no exception can come between these assignments: workers never write
        # rows of another layout than the one that is delivered.
        self._plan, self._offer, self._gpu = plan, offer, gpu
        self.layout: Layout | None = layout

    def _gpu_options(self, sent: Plan) -> GpuOptions | None:
        plan = sent if self._gpu_writes_to_slot else self._whole_plan
        row_bytes, slot_row_bytes = _image_bytes(plan), _image_bytes(sent)
        return eligibility.gpu_options(self._choice, plan, self._table, row_bytes, slot_row_bytes)

    @property
    def _gpu_writes_to_slot(self) -> bool:
        """Whether a GPU worker writes what CPU workers write; on a device it writes elements."""
        return self._choice.device_id is None

    def send_converted(self, has_kernel: Callable[[str], bool]) -> RowConversion | None:
        plan, split = self._whole_plan, self._choice.split
        levels, layout = make_levels_plan(plan), layout_of(plan)
        assert isinstance(layout, Layout)
        plan_to_send: Plan = plan
        conversion: RowConversion | None = None
        if split is not None and has_kernel(ProgramRows.kernel):
            plan_to_send, conversion = split, program_rows(split, layout)
        elif isinstance(levels, Plan) and has_kernel(LevelRows.kernel):
            plan_to_send, conversion = levels, level_rows(plan, layout)
        if plan_to_send is not self._plan:
            self._send(plan_to_send)
        self._augments = isinstance(conversion, ProgramRows)
        return conversion

    def name(self, index: Index) -> str:
        return self._compiled.name(index)

    def describe(self, indices: list[Index]) -> Described:
        """Describes indices by item numbers; those that the dataset does not have are -1."""
        items = [self._item(index) for index in indices]
        sizes = self._table.sizes
        rows = order_by_size([int(sizes[item]) if item >= 0 else 0 for item in items])
        return Described(items, rows, b"")

    def _item(self, index: Index) -> int:
        try:
            item = as_integer(index)
        except TypeError:
            return NO_ITEM
        item += self.count if item < 0 else 0
        return item if 0 <= item < self.count else NO_ITEM

    def workforce(self, options: LoaderOptions, base_seed: int, on_device: bool) -> Workforce:
        participants: list[Participant] = []
        if self._gpu is not None and (on_device or not self._gpu.buffers):
            participants.append(GpuControl(self._gpu))
        if self._augments:
            participants.append(DeviceAugmentation())
        is_for_remote = options.worker_init_fn is None and not self._compiled.is_remote
        if options.remote is not None and is_for_remote:  # as explain() says
            link = self._parts.link(options)
            if link is not None:
                task = remote_task(options, link, self._plan, self._table)
                participants.append(RemoteProxy(task))
        if self._offers is not None and self._offer is not None:
            participants.append(BorrowedWorkers(self._offers, self._offer))
        binding = bind_to_pool(options)
        if binding is None:
            return Workforce(self._starter(options, base_seed), participants)
        start = self._pool_starter(options, base_seed, binding)
        return Workforce(start, [*participants, binding])

    def _starter(self, options: LoaderOptions, base_seed: int) -> StartWorker:
        """Returns a function that starts workers, without torch unless user code runs in them."""
        init, dataset = options.worker_init_fn, options.dataset
        context, method = find_context(options)
        formats = AddedFormats() if method == "fork" else self._formats()
        info = None
        if init is not None or formats.of_script:
            info = (options.num_workers, base_seed, dataset, init, self._whole_plan)
        return native_starter(self._config(options, formats), context, method, info)

    def _pool_starter(
        self, options: LoaderOptions, base_seed: int, binding: PoolBinding
    ) -> StartWorker:
        formats, init, info = self._formats(), options.worker_init_fn, None
        if init is not None:
            info = (options.num_workers, base_seed, options.dataset, init, self._whole_plan)
        config = self._config(options, formats)
        user_code = init is not None or formats.of_script
        return start_in_pool(binding, Payload((config, info), config.descriptors(), user_code))

    def _formats(self) -> AddedFormats:
        return AddedFormats() if self._compiled.kind == "pixels" else AddedFormats.here()

    def _config(self, options: LoaderOptions, formats: AddedFormats) -> NativeWorkerConfig:
        """Returns the fields that all workers have in common."""
        stores, joined = self._cache.handles(), self._cache.joined
        return NativeWorkerConfig(
            table_fd=self._table.fd,
            table_bytes=self._table.nbytes,
            plan=self._plan,
            on_error=options.on_error,
            address="" if self._offers is None else self._offers.ranks.address,
            load_truncated=ImageFile.LOAD_TRUNCATED_IMAGES,
            max_pixels=Image.MAX_IMAGE_PIXELS,
            formats=formats,
            **stores.descriptors(),
            mapped=dict(stores.mapped),
            remote_files=self._remote_files(),
            identity_fd=-1 if joined is None else joined.identity.fd,
            names=self._compiled.sample_names(),
        )

    def _remote_files(self) -> RemoteFiles | None:
        """Returns the source of files at URLs or in cache servers; ``None`` for local files."""
        if self._reader is not None:
            return self._reader.files
        if self._compiled.is_remote:
            images, _ = self._compiled.ranged()
            found = images.remote_files()
            if found is None:
                kind = type(images).__name__
                raise ValueError(f"{kind}.remote_files() is None, but its files are URLs")
            return found
        joined = self._cache.joined
        return None if joined is None else joined.remote_files

    def agreement(self, options: LoaderOptions) -> Agreement:
        """Returns the values that jobs must have in common to share preparation."""
        assert self.layout is not None
        return Agreement.of(options, self._plan, self.layout, self._table)

    def no_layout(self, why: str) -> WorkerBackend:
        """Never called, because the plan determines the layout."""
        raise AssertionError(why)

    def epoch_ended(self) -> None:
        self._cache.epoch_ended()


def _image_bytes(plan: Plan) -> int:
    """Returns the bytes of an image in a row."""
    layout = layout_of(plan)
    assert isinstance(layout, Layout)
    return layout.leaves[0].nbytes

"""Whether a loader has a GPU worker, and if not, why."""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fusionloader.cache.tiers.dataset_table import DatasetTable
from fusionloader.data.sources.datasets import Compiled
from fusionloader.gpu.augmentation import find_whole_plan, split_for
from fusionloader.gpu.caching_allocator import TorchAllocator
from fusionloader.gpu.memory_lender import MemoryOptions
from fusionloader.gpu.start import Connections, GpuOptions
from fusionloader.gpu.worker import BorrowedMemory, GpuWorkerConfig, main_with_script
from fusionloader.options.gpu_settings import GpuWorker
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.system import processes
from fusionloader.system.amounts import parse_bytes
from fusionloader.system.processes import Process
from fusionloader.system.shm.descriptor import Descriptor
from fusionloader.transforms.executors.decoders import by_name
from fusionloader.transforms.executors.device.launch_memory import TorchPool
from fusionloader.transforms.executors.device.make_task import HeadOptions
from fusionloader.transforms.executors.device.nvrtc import why_missing
from fusionloader.transforms.executors.device.split import describe_tail
from fusionloader.transforms.executors.device.support import why_not
from fusionloader.transforms.plan.stages import Plan, SplitPlan

log = logging.getLogger("fusionloader.gpu")

_PERSISTENT = "its start takes seconds in every epoch: pass persistent_workers=True to keep it"
_ON_CPU = ", or GpuWorker(device='cpu') for DALI's CPU backend"
_MOST_SAMPLES = 64  # in a launch
_LAUNCH_BYTES = 16 << 20  # estimate per sample: a decoded image of 4 megapixels
_DEVICE_BUFFERS = 5  # the batch in use, two complete ones behind it, and two in the making


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """The GPU worker of a loader, or the reason why there is none.

    Attributes:
        worker: the user's settings; ``None`` if no GPU worker was requested.
        device_id: CUDA's device number; ``None`` for the CPU backend.
        why_not: why there is no GPU worker; ``None`` if there is one, or none was requested.
        tiny_batch_size: samples in a tiny-batch.
        batch_size: samples in a mini-batch; 0 if it is unknown.
        persistent: whether the worker lives from epoch to epoch.
        split: the plan whose last stages the device runs at delivery, instead of a GPU worker.
    """

    worker: GpuWorker | None = None
    device_id: int | None = None
    why_not: str | None = None
    tiny_batch_size: int = 1
    batch_size: int = 0
    persistent: bool = True
    split: SplitPlan | None = None

    def explain(self) -> str:
        """Returns a line for ``explain()``, empty if no GPU worker was requested."""
        if self.worker is not None and self.worker.decoder == "workers":
            return self._explain_split()
        if self.why_not is not None:
            return f"no GPU worker: {self.why_not}"
        if self.worker is None:
            return ""
        engine = by_name.describe_decoder(self.worker, self.device_id is not None)
        where = "the CPU" if self.device_id is None else f"cuda:{self.device_id}"
        if self.worker.where == "thread":
            where = f"{where}, in a thread of this process,"
        text = (
            f"a GPU worker on {where} takes the largest samples, decoded by {engine}, "
            f"sharing={self.worker.sharing!r}"
        )
        text += f"; {_pixels(self.worker, self.device_id is not None)}"
        if not self.persistent:
            text = f"{text}; {_PERSISTENT}"
        if memory_options(self) is None:
            return text
        when = "it may borrow" if self.worker.memory == "share" else "if memory is short it borrows"
        return f"{text}; {when} {self.worker.share_limit} of training's while training waits"

    def _explain_split(self) -> str:
        if self.split is None:
            return f"no augmentation on the device (decoder='workers'): {self.why_not}"
        return (
            f"cuda:{self.device_id} runs {describe_tail(self.split)} and the conversion on "
            "delivery, CPU workers what comes before, with the same pixels: "
            f"{self.split.row_bytes} bytes of a sample cross to it"
        )


def _pixels(worker: GpuWorker, on_gpu: bool) -> str:
    """Returns a sentence on how the GPU worker's pixels differ from those of a CPU worker."""
    if isinstance(worker.decoder, str) and not on_gpu:
        return "its pixels are those of the CPU workers"
    own = not isinstance(worker.decoder, str)
    apart = "what the decoder does otherwise" if own else "the rounding of nvJPEG"
    return f"its pixels differ from those of the CPU workers by {apart} (docs/how/fidelity.md)"


def choose(options: LoaderOptions, compiled: Compiled | None) -> GpuChoice:
    """Returns the GPU worker for a loader; ``compiled`` is its dataset's plan, if there is one.

    Raises:
        ValueError: an explicit ``GpuWorker`` is impossible with any dataset.
        ImportError: a package that an explicit ``GpuWorker`` needs is not installed.
    """
    wanted = options.gpu_worker
    device = torch.device(options.device) if options.device is not None else torch.device("cpu")
    explicit = isinstance(wanted, GpuWorker)
    if wanted is None and device.type == "cuda":
        lacking = _lacking(options, compiled, GpuWorker(), on_gpu=True) or why_missing()
        if lacking is not None:
            auto = f"would have none either: {lacking}"
        else:
            auto = f"would try one, and {_pixels(GpuWorker(), on_gpu=True)}"
        return GpuChoice(why_not=f'off by default; gpu_worker="auto" {auto}')
    if wanted is None or (isinstance(wanted, GpuWorker) and wanted.sharing == "off"):
        return GpuChoice()
    if not explicit and device.type != "cuda":
        return GpuChoice()
    worker = wanted if isinstance(wanted, GpuWorker) else GpuWorker()
    device_id = _device_id(worker, device)
    if worker.decoder == "workers":
        split = split_for(options, compiled)
        if isinstance(split, str):
            return GpuChoice(worker, device_id, why_not=split)
        return GpuChoice(worker, device_id, split=split)
    why = _lacking(options, compiled, worker, on_gpu=device_id is not None)
    if options.num_workers > 0 and (missing := by_name.missing_package(worker)):
        if explicit:
            package, command = missing
            raise ImportError(
                f"{_described(worker)} needs {package}: {command}; other decoders are "
                'GpuWorker(decoder="dali" | "nvjpeg" | "torchvision")'
            )
        _say_once(f"no GPU worker, because {why}")
    if why is None and device_id is not None and (why := why_missing()) is not None:
        _say_once(f"no GPU worker, because {why}")
    size, persistent = options.batch_size or 0, options.persistent_workers
    return GpuChoice(worker, device_id, why, options.tiny_batch_size, size, persistent)


def _lacking(
    options: LoaderOptions, compiled: Compiled | None, worker: GpuWorker, on_gpu: bool
) -> str | None:
    """Returns the reason if a loader cannot have a GPU worker; ``None`` if it can."""
    if options.num_workers == 0:
        return "num_workers=0"
    if missing := by_name.missing_package(worker):
        return _not_installed(*missing)
    why = _unsuitable(compiled, worker)
    if why is None and on_gpu and not options.batch_size:
        why = "the size of a batch_sampler's batches is not known"
    return why


def _not_installed(package: str, command: str) -> str:
    return f"{package} is not installed: {command}"


def _device_id(worker: GpuWorker, device: torch.device) -> int | None:
    if worker.device == "cpu":
        return None
    if device.type != "cuda":
        on_cpu = "" if worker.decoder == "workers" else _ON_CPU
        raise ValueError(
            f"GpuWorker works on the loader's device: pass device='cuda' to the loader{on_cpu}"
        )
    index, wanted = _index(device), torch.device(worker.device or device)
    if wanted.type != "cuda" or _index(wanted) != index:
        raise ValueError(
            f"GpuWorker(device={worker.device!r}) is not on the loader's device, cuda:{index}: "
            "leave GpuWorker's device out, or give the loader the same one"
        )
    if index >= (count := torch.cuda.device_count()):
        raise ValueError(f"GpuWorker on cuda:{index}, but CUDA has {count} devices")
    return index


def _index(device: torch.device) -> int:
    if device.index is None and torch.cuda.device_count():
        return torch.cuda.current_device()
    return device.index or 0


@functools.cache
def _say_once(text: str) -> None:
    log.warning("%s", text)


def _described(worker: GpuWorker) -> str:
    return f"GpuWorker(decoder={worker.decoder!r})"


def _unsuitable(compiled: Compiled | None, worker: GpuWorker) -> str | None:
    plan = find_whole_plan(compiled)
    if compiled is None or isinstance(plan, str):
        return str(plan)
    if compiled.kind not in ("folder", "ranges"):
        return "the images are not files of a folder, nor ranges of files"
    if compiled.is_remote:
        return "the images are at URLs, which CPU workers read"
    return why_not(plan, by_name.head_filters(worker))


def mark_stream(device_id: int | None) -> Callable[[], Callable[[], bool]]:
    """Returns a function that records an event on training's current stream.

    That function returns another one, which says whether the device has passed the event.
    """
    if device_id is None:  # on the CPU, training has finished its work when it calls next()
        return lambda: lambda: True

    def mark() -> Callable[[], bool]:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(device_id))
        return event.query

    return mark


def within(
    limit: int, batch_bytes: int, most: int, on_gpu: bool, groups: int = 1
) -> tuple[int, int]:
    """Returns the samples in a launch and the device buffers that fit a memory limit.

    Each gets half of the limit. A launch is estimated at 16 MiB per sample, a decoded image of 4
    megapixels. The decoder's own memory cannot be limited.

    Args:
        limit: bytes of device memory.
        batch_bytes: bytes of a mini-batch.
        most: samples in a launch without a limit.
        on_gpu: whether there are device buffers.
        groups: launches whose images are on the device at the same time.

    Raises:
        ValueError: not even one sample, or one batch, fits the limit.
    """
    buffers = min(_DEVICE_BUFFERS, limit // 2 // max(batch_bytes, 1)) if on_gpu else 0
    samples = min(most, limit // 2 // _LAUNCH_BYTES // groups)
    if samples < 1 or (on_gpu and buffers < 1):
        needed = 2 * max(_LAUNCH_BYTES * groups, batch_bytes if on_gpu else 0)
        raise ValueError(
            f"memory_limit of {limit} bytes is too small for a GPU worker, which needs {needed}"
        )
    return samples, buffers


def memory_options(choice: GpuChoice) -> MemoryOptions | None:
    """Returns the options for lending memory to the chosen worker; ``None`` for no lending."""
    worker, device_id = choice.worker, choice.device_id
    if worker is None or device_id is None or worker.memory == "own":
        return None
    if worker.where == "thread":  # it allocates from training's pool anyway
        return None
    if worker.decoder != "dali":  # other decoders' allocations would stay in borrowed memory
        return None
    if worker.sharing == "spatial":  # lending needs temporal sharing
        return None
    return MemoryOptions(
        device=device_id,
        limit=parse_bytes(worker.share_limit),
        always=worker.memory == "share",
        allocator=TorchAllocator(device_id),
        pool=functools.partial(TorchPool, device_id),
    )


def gpu_options(
    choice: GpuChoice, plan: Plan, table: DatasetTable, row_bytes: int, slot_row_bytes: int
) -> GpuOptions | None:
    """Returns the options by which the manager starts the chosen worker; ``None`` for no worker.

    Args:
        choice: the chosen worker.
        plan: what it makes.
        table: the dataset's files and targets.
        row_bytes: bytes of an image that it makes.
        slot_row_bytes: bytes of an image in a batch slot, which may be 8-bit levels.
    """
    worker = choice.worker
    if worker is None or choice.why_not is not None or choice.split is not None:
        return None
    if not choice.persistent:
        _say_once(f"GPU worker: {_PERSISTENT}")
    device_id, tiny = choice.device_id, choice.tiny_batch_size
    fixed = worker.group_size is not None
    most = worker.group_size or _MOST_SAMPLES
    buffers = 0 if device_id is None else _DEVICE_BUFFERS
    memory, head = memory_options(choice), _head_options(worker)
    if worker.memory_limit is not None:
        limit = parse_bytes(worker.memory_limit)
        most, buffers = within(
            limit, row_bytes * choice.batch_size, most, device_id is not None, head.groups
        )
    # A bare process starts faster, but cannot unpickle a decoder that the training script defines.
    of_script = isinstance(head.decoder, bytes) and b"__main__" in head.decoder

    def start(shared: Connections, number: int, message_fd: int, most: int) -> Process:
        borrowed, fds = None, [shared.control_fd, shared.data_fd, table.fd, message_fd]
        if memory is not None and shared.memory_fd >= 0:
            borrowed = BorrowedMemory(shared.memory_fd, memory.pool, trims=memory.always)
            fds.append(shared.memory_fd)
        config = GpuWorkerConfig(
            worker=number,
            parent=os.getpid(),
            control_fd=shared.control_fd,
            data_fd=shared.data_fd,
            buffers=shared.buffers,
            table_fd=table.fd,
            table_bytes=table.nbytes,
            message_fd=message_fd,
            plan=plan,
            row_bytes=row_bytes,
            slot_row_bytes=slot_row_bytes,
            device_id=device_id,
            tiny_batch_size=tiny,
            most_samples=most,
            fixed_group=fixed,
            head=head,
            memory=borrowed,
        )
        if worker.where == "thread":
            from fusionloader.gpu.worker_thread import WorkerThread  # importing it adds fork hooks

            return WorkerThread(config)
        if of_script:
            descriptors = {name: Descriptor(fd) for name, fd in config.descriptors().items()}
            context = multiprocessing.get_context("spawn")
            return processes.start(context, main_with_script, config, descriptors)
        return processes.BareProcess("fusionloader.gpu.worker", config, tuple(fds))

    mark = mark_stream(device_id)
    allocator = None if device_id is None else TorchAllocator(device_id)
    in_thread = worker.where == "thread"
    engine = by_name.describe_decoder(worker, device_id is not None)
    return GpuOptions(
        start, most, worker.sharing, mark, buffers, memory, engine, in_thread, allocator
    )


def _head_options(worker: GpuWorker) -> HeadOptions:
    """Returns the options of the decoder.

    Raises:
        pickle.PicklingError: the user's decoder cannot be pickled for the worker's process.
    """
    decoder = worker.decoder
    # In temporal sharing training waits for begun groups when its batch is done, so that there is
    # no second one.
    waits = worker.sharing == "temporal"
    return HeadOptions(
        decoder=decoder if isinstance(decoder, str) else by_name.pickled(decoder),
        name=by_name.decoder_title(worker),
        threads=worker.threads,
        hw_decoder_load=worker.hw_decoder_load,
        groups=1 if waits else 2,
        timeout=worker.decoder_timeout,
        # A thread allocates from torch's pool, from which training can take what is free.
        keeps_memory=worker.where == "process",
    )

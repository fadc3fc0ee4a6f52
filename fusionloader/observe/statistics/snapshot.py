"""What ``FusionLoader.stats()`` returns: a snapshot of everything that is counted, typed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

from fusionloader.cache.store_stats import StoreStats
from fusionloader.data.read_ahead.counters import StreamStats
from fusionloader.observe.statistics.cache_stats import CacheStats
from fusionloader.observe.statistics.counters import scalars
from fusionloader.observe.statistics.processor_use import ProcessorUse
from fusionloader.observe.statistics.remote_stats import RemoteStats
from fusionloader.observe.statistics.shared_prep import SharedPrepStats
from fusionloader.observe.statistics.stages import StageStats
from fusionloader.observe.statistics.waits import WaitStats
from fusionloader.observe.statistics.worker_limit import HARDLY, worker_limit
from fusionloader.system.amounts import mib

Scalar = int | float
AnyWorkerKind = Literal["native", "python", "gpu", "borrowed", "remote"]
SECONDS_OF_WORKERS = ("busy_seconds", "cpu_seconds", "delay_seconds")
_IDLE = 2  # times the rate of training, from which capacity on workers are not what it waits for
_OF_WORKERS = ("samples", "restarts", *SECONDS_OF_WORKERS)


@dataclass(frozen=True, slots=True)
class WorkerStats:
    """One worker of the iterator under way, or of the last one.

    Attributes:
        number: number of the worker.
        pid: process id, 0 before the process has begun.
        kind: what it runs: a plan natively, user code in Python, a plan on a GPU; or ``"borrowed"``
            where it is another rank's, of which one guest slot may have seen several; ``"remote"``
            where it is a core of another machine.
        samples: samples made by workers of this number since the loader was made.
        busy_seconds: time spent making these samples, in seconds.
        busy_share: fraction of the time since the start that was spent making samples, 0 to 1.
        restarts: how often the worker of that number was replaced.
        cpu_seconds: processor time of its thread, looked at every 10 ms.
        delay_seconds: time that its thread was ready to run while others had the cores; 0 where the
            kernel does not count it.
    """

    number: int
    pid: int
    kind: AnyWorkerKind
    samples: int
    busy_seconds: float
    busy_share: float
    restarts: int
    cpu_seconds: float = 0.0
    delay_seconds: float = 0.0

    def since(self, earlier: WorkerStats | None) -> WorkerStats:
        """Returns the same with the counters of an ``earlier`` worker of its number added."""
        if earlier is None:
            return self
        counted = {name: getattr(self, name) + getattr(earlier, name) for name in _OF_WORKERS}
        return replace(self, **counted)


@dataclass(frozen=True, slots=True)
class LoaderStats:
    """Counters since the loader was made; seconds are wall time.

    Attributes:
        wait_share: fraction of the time that training has waited for batches, 0 to 1; the number to
            look at first. ``None`` before the second batch.
        waits: distribution of the waits, and the waits for first batches.
        capacity: samples per second that the present workers could make; ``None`` before they have
            made any.
        stages: the same for each stage alone, see ``StageStats``.
        rank: rank of this process in its job, 0 without one.
        epochs: number of finished epochs.
        batches: number of delivered batches.
        samples: number of delivered samples.
        skipped: bad samples that were left out.
        substituted: bad samples that were replaced.
        errors: texts of the first 100 bad samples.
        workers: workers of the current iterator, or of the last one; empty without workers.
        worker_restarts: number of replaced workers.
        worker_seconds: time that workers spent making samples, in seconds.
        processors: what workers and training got of the machine's processors.
        pillow_samples: samples of a compiled plan that Pillow decoded.
        borrowed_samples: samples made by workers of other ranks.
        read_bytes: bytes read from files, as they are stored.
        files_opened: files that ``OpenFiles`` of user code has opened in workers.
        files_reused: times that ``OpenFiles`` had a file open.
        cache_hits: samples that came from the loader's cache, from whatever tier.
        cache: hits, misses and content of the cache; ``None`` without one.
        in_flight: mini-batches that are being made.
        slots: batch slots, those of delivered batches that are still in use included.
        shared_memory_bytes: peak size of the slots, in bytes.
        shared_memory_limit_bytes: limit of mini-batches in flight, in bytes: ``max_shared_bytes``,
            or a quarter of the free memory. 0 while their size is unknown, and for whole batches.
        copied_bytes: bytes copied to a CUDA device.
        part_seconds: seconds of workers by part of the plan: reading, decoding, Python code,
            writing, and each stage.
        gpu_worker: its ``mode`` now, whether it is ``profiling``, the ``rates`` (samples per
            second) by mode, the ``threshold``, its ``samples``, its ``decoder``, ``where`` it
            works, how many samples were ``refused`` for which reason, ``restarts``, if it is
            ``gone``, why, and of its ``memory`` the ``lent_bytes``, ``borrowed_bytes`` and
            ``revoked_bytes`` of all loans, whether it was ``short``, and ``why_not`` if nothing
            can be lent. With ``GpuWorker(decoder="workers")``, the ``mode`` is ``"delivery"``, and
            ``samples`` those that the device has augmented. Empty without one.
        deferred_images: images that user code opened: how many ``files`` were deferred, which were
            ``left_to_pillow`` and why, the operations ``recorded``, the calls on plain tensors
            that ran ``native``, the calls of image processors that were ``processed``: their code
            was ``run``, or what it did was ``replayed``, what the ``results`` were, how their
            tensors were ``collated``, what ``ended_by`` asking for pixels, and which replacements
            have ``failed``, by what they replace, with the error.
        decoded_cache: content of the decoded cache; ``None`` without one.
        jpeg_index: content of the JPEG index; ``None`` without one.
        shared_prep: what is shared with other jobs; ``None`` without ``share``.
        remote: what other machines' workers have done; ``None`` without ``remote``.
        stream: what was read of URLs; ``None`` where the files are local.
    """

    wait_share: float | None
    waits: WaitStats
    capacity: float | None
    stages: tuple[StageStats, ...]
    rank: int
    epochs: int
    batches: int
    samples: int
    skipped: int
    substituted: int
    errors: tuple[str, ...]
    workers: tuple[WorkerStats, ...]
    worker_restarts: int
    worker_seconds: float
    processors: ProcessorUse
    pillow_samples: int
    borrowed_samples: int
    read_bytes: int
    files_opened: int
    files_reused: int
    cache_hits: int
    cache: CacheStats | None
    in_flight: int
    slots: int
    shared_memory_bytes: int
    shared_memory_limit_bytes: int
    copied_bytes: int
    part_seconds: tuple[float, ...]
    gpu_worker: Mapping[str, object]
    deferred_images: Mapping[str, object]
    decoded_cache: StoreStats | None
    jpeg_index: StoreStats | None
    shared_prep: SharedPrepStats | None
    remote: RemoteStats | None
    stream: StreamStats | None

    def __str__(self) -> str:
        """Returns a summary of some lines; ``repr`` has everything."""
        lines = [
            f"{self.samples:,} samples in {self.batches:,} batches, {self.epochs:,} whole epochs",
            self.waiting,
        ]
        if self.waits.p50 is not None and self.waits.p95 is not None:
            lines.append(
                f"Half of the waits take up to {self.waits.p50 * 1e3:.3g} ms, 95 in 100 up to "
                f"{self.waits.p95 * 1e3:.3g} ms."
            )
        if self.waits.first_seconds:
            lines.append(
                f"First batches came {self.waits.startup_seconds:.3g} s after iter(), of which "
                f"{self.waits.iter_seconds:.3g} s are iter() itself"
            )
        if self.capacity is not None:
            lines.append(f"{self._workers()} could make {self.capacity:,.0f} samples/s.")
        total = sum(stage.seconds for stage in self.stages)
        shares = [
            f"{each.name} {each.seconds / total:.0%}"
            for each in self.stages
            if each.seconds > 0.005 * total
        ]
        if len(shares) > 1:
            lines.append(f"Their time: {', '.join(shares)}")
        counts = {
            "bad samples left out": self.skipped,
            "bad samples replaced": self.substituted,
            "workers replaced": self.worker_restarts,
            "samples from the cache": self.cache_hits,
            "samples by workers of other ranks": self.borrowed_samples,
            "files opened (OpenFiles)": self.files_opened,
            "files that were open (OpenFiles)": self.files_reused,
        }
        lines += [f"{count:,} {what}" for what, count in counts.items() if count]
        if self.shared_memory_bytes:
            lines.append(f"{mib(self.shared_memory_bytes)} of shared memory at the peak")
        return "\n".join(lines)

    @property
    def waiting(self) -> str:
        """How long training waits, and why, in a sentence."""
        share = self.waits.share
        if share is None:
            return "Nothing has been measured yet."
        if share < HARDLY:
            return f"Training's own step is the limit: it waits {share:.1%} of its time."
        rate = self.samples / self.waits.step_seconds
        busy = self.capacity is not None and self.capacity < _IDLE * rate
        limit = worker_limit(self.stages if busy else (), self.processors)
        why = "" if limit is None else f": {limit.sentence}"
        return f"Training waits {share:.1%} of its time{why}."

    def _workers(self) -> str:
        count = len(self.workers)
        return "The training process" if not count else f"{count} worker{'s' * (count > 1)}"

    @property
    def wait_seconds(self) -> float:
        """Waited in ``next()``, for the first batches of epochs, too."""
        return self.waits.seconds + self.waits.first_seconds

    def as_dict(self) -> dict[str, object]:
        """Returns everything as plain values, for any reader of JSON.

        The histogram's last bucket, which has no upper bound, has ``None`` for it.
        """
        values = asdict(self)
        values["waits"]["histogram"] = [
            [None if math.isinf(bound) else bound, count] for bound, count in self.waits.histogram
        ]
        return values

    def scalars(self, prefix: str = "fusionloader/") -> dict[str, Scalar]:
        """Returns the numbers to plot over training, for TensorBoard's and W&B's kind of logger.

        The names are those of the attributes, behind ``prefix``: ``wait/p95``,
        ``capacity/decode``, ``worker/native/0/busy_share``. Unknown ones are left out.
        """
        return {prefix + name: value for name, value in scalars(self)}

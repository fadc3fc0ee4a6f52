"""Predicts epochs by the simulator, from what was measured on a loader.

A simulated epoch has the loader's mini-batches, its bound on what is made ahead and its claims of
tiny-batches; samples cost what they were measured to cost. Workers share the cores of this machine
with each other and with the training process, and read files from one storage.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fusionloader.cli.analysis.drains import Drain
from fusionloader.cli.analysis.files import FileCacheLimit
from fusionloader.cli.analysis.findings import LoaderFindings, LoaderShape
from fusionloader.cli.analysis.phases import Phase
from fusionloader.cli.analysis.service import SampleCost, SampleService
from fusionloader.cli.analysis.what_if.questions import Question
from fusionloader.cli.simulator.loader import simulate
from fusionloader.cli.simulator.machine import MachineModel, Storage
from fusionloader.cli.simulator.setup import CPU_ONLY, SimulationSetup, Variant
from fusionloader.cli.simulator.times import GpuTimes, Sample
from fusionloader.scheduler.gpu_sharing import Mode

_WHOLE_BATCHES = Variant("whole mini-batches", Mode.OFF, affinity=False)
_NO_GPU_WORKER = GpuTimes(0.0, 0.0, 0.0, 0.0, 1.0, 1.0)
_MODEL = "training"
_DECK = 1000  # samples at least, so that any share of them is cached
_SIMULATED = 4000  # samples; longer epochs go on as these do
_FEWEST_STEPS = 40
_COMPETES = 0.1  # of a core, from which on training is in the workers' way
_LEAST_SPEED = 0.25  # of a core beside others
_WAITS = 0.1  # of a sample's time, from which on waiting for something else counts
_MOST_OF_CORES = 0.75  # up to which workers that wait are hardly in each other's way
_FILE_CACHE = 0.7  # of the memory of a machine, that files may take


@dataclass(slots=True)
class Deck:
    """The samples of simulated epochs: those measured, shuffled, none before all others were.

    Attributes:
        costs: costs of samples whose decoded images are not cached.
        hit_seconds: seconds of a core for a sample whose decoded image is.
        share: fraction of the samples that are cached, 0 to 1.
        file_share: fraction of the others whose files are in the file cache, 0 to 1.
    """

    costs: list[SampleCost]
    hit_seconds: float
    share: float
    file_share: float = 0.0
    gpu: GpuTimes = _NO_GPU_WORKER
    models: Mapping[str, float] = field(default_factory=dict)
    _left: list[Sample] = field(default_factory=list)

    def draw(self, source: random.Random, count: int) -> list[Sample]:
        """Returns the samples of a mini-batch."""
        while len(self._left) < count:
            self._left += self._shuffled(source)
        drawn, self._left = self._left[:count], self._left[count:]
        return drawn

    def _shuffled(self, source: random.Random) -> list[Sample]:
        costs = self.costs * -(-_DECK // len(self.costs))
        source.shuffle(costs)
        kept = round(self.share * len(costs))
        in_memory = kept + round(self.file_share * (len(costs) - kept))
        hits = [Sample(nbytes, self.hit_seconds, 0.0) for nbytes, _, _ in costs[:kept]]
        # Evenly shared cores would keep workers in step that wait equally long.
        misses = [
            Sample(
                *(each.nbytes, each.seconds, 0.0, each.nbytes if number >= in_memory else 0),
                each.waiting * source.uniform(0.5, 1.5),
            )
            for number, each in enumerate(costs[kept:], kept)
        ]
        return source.sample([*hits, *misses], len(costs))


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a simulated epoch takes.

    Attributes:
        question: what was asked.
        seconds: duration of an epoch; ``None`` for a stream without length.
        rate: samples per second.
        wait_share: fraction of the time that training waits, 0 to 1.
    """

    question: Question
    seconds: float | None
    rate: float
    wait_share: float


class Model:
    """A loader and its training, as far as its speed goes."""

    def __init__(
        self, shape: LoaderShape, service: SampleService, step: float, cores: float
    ) -> None:
        """Training takes ``step`` seconds a mini-batch in memory, and ``cores`` meanwhile."""
        self.shape, self.service = shape, service
        self.step_seconds = step
        self._training_cores = 0.0 if shape.on_device or cores < _COMPETES else cores
        self._measured = max(1, min(service.warm.workers, int(shape.cores)))
        self._beside = self._speed_beside()

    @classmethod
    def of(cls, findings: LoaderFindings) -> Model | None:
        """Returns the model of a loader; ``None`` where too little was measured."""
        memory = findings.phases.get(Phase.MEMORY)
        if findings.shape is None or findings.service is None or memory is None:
            return None
        step = memory.seconds / memory.steps
        made = cls(findings.shape, findings.service, step, memory.cpu_seconds / memory.seconds)
        return (made.with_index() or made) if findings.shape.jpeg_index else made

    def with_index(self) -> Model | None:
        """Returns the model with a JPEG index; ``None`` where it was not measured."""
        return None if self.service.indexed is None else self._with(self.service.indexed)

    def fused(self) -> Model | None:
        """Returns the model with ``FusionLoader`` for torch's; ``None`` where it is one."""
        if self.service.fused is None:
            return None
        made = self._with(self.service.fused)
        made.shape = replace(self.shape, tiny_batch_size=4)
        return made

    def _with(self, drained: Drain) -> Model:
        service = replace(self.service, warm=drained, alone=None)
        made = Model(self.shape, service, self.step_seconds, self._training_cores)
        made._beside = self._beside
        return made

    # ---- the cost of a sample ------------------------------------------------------------------

    def _seconds(self, drained: Drain) -> float:
        """Seconds of a core for a sample, beside as many workers as there were."""
        if self._waiting_in(drained) and drained.cpu_seconds:
            return max(drained.cpu_seconds / drained.samples, 1e-7)
        wanted = self._wanted_cores(drained)
        share = min(1.0, self.shape.cores / wanted)
        seconds = (drained.service_seconds - self._waiting_in(drained)) * share
        if wanted >= self.shape.cores:  # the training process had part of the cores
            seconds -= drained.delivery_seconds / self.shape.batch_size
        return max(seconds, 1e-7)

    def _wanted_cores(self, drained: Drain) -> float:
        """Cores that the workers would have used: those that wait for something else use none."""
        waiting = self._waiting_in(drained)
        computing = max(0.0, drained.service_seconds - waiting) / drained.service_seconds
        return max(1.0, drained.workers * computing)

    def _waiting_in(self, drained: Drain) -> float:
        """The same in a measurement; samples from a cache were not timed one by one."""
        return 0.0 if drained is self.service.cached else self._waiting

    def _other_waiting(self) -> float:
        """How often as long as one by one, samples of workers wait: wake-ups, others' processes.

        Where the workers want all cores, they wait for these, which the simulation adds itself.
        """
        warm = self.service.warm
        if not self._waiting or not warm.cpu_seconds:
            return 1.0
        computing = warm.cpu_seconds / warm.samples
        if warm.workers * computing / warm.service_seconds > _MOST_OF_CORES * self.shape.cores:
            return 1.0
        return max(1.0, (warm.service_seconds - computing) / self._waiting)

    @property
    def _waiting(self) -> float:
        """Seconds that a sample's code waits without a core; 0 if it is a small part."""
        costs = self.service.costs
        mean = sum(each.waiting for each in costs) / len(costs) if costs else 0.0
        return mean if mean > _WAITS * self.service.warm.service_seconds else 0.0

    def _speed_beside(self) -> float:
        alone = self.service.alone
        if alone is None or self._measured < 2:
            return 1.0
        return min(1.0, max(_LEAST_SPEED, self._seconds(alone) / self._seconds(self.service.warm)))

    def _speed_of(self, drained: Drain) -> float:
        """The speed of the cores while this was measured."""
        machine = MachineModel(self.shape.cores, self._beside, self._measured)
        wanted = min(self._wanted_cores(drained), self.shape.cores)
        return machine.speed(wanted) if drained.workers else 1.0

    def sample_seconds(self, drained: Drain | None = None) -> float:
        """Returns seconds of a core that is alone for a sample."""
        drained = drained or self.service.warm
        return self._seconds(drained) * self._speed_of(drained)

    # ---- predictions ---------------------------------------------------------------------------

    def why_not(self, question: Question) -> str:
        """Returns why a question cannot be answered from what was measured; empty if it can."""
        if question.cache and self.service.cached is None:
            return "cache: no DecodedCache could be measured on this loader"
        if question.storage and self.service.reads is None:
            return "storage: the loader was not seen to read files"
        if question.file_cache is not None and question.storage is None:
            reads = self.service.reads
            if reads is None or not self.shape.samples:
                return "file_cache: the loader was not seen to read files"
            if reads.storage is None:
                return f"file_cache: the storage was not measured, {reads.note}: give storage="
        return ""

    def predict(self, question: Question) -> Prediction:
        """Simulates an epoch.

        Raises:
            ValueError: what is asked was not measured.
        """
        if why := self.why_not(question):
            raise ValueError(why)
        shape = self.shape
        workers = shape.workers if question.workers is None else question.workers
        step = self.step_seconds / question.gpu
        if not workers:
            per_step = step + shape.batch_size * self._in_process(question)
            return self._prediction(question, per_step * (shape.steps or 1), step)
        ahead = shape.prefetch_factor * workers
        steps = max(_FEWEST_STEPS, 2 * ahead, -(-_SIMULATED // shape.batch_size))
        steps = min(steps, shape.steps or steps)
        setup = SimulationSetup(
            self._deck(question, shape.batch_size / step),
            CPU_ONLY if shape.tiny_batch_size else _WHOLE_BATCHES,
            workers,
            _MODEL,
            steps,
            shape.batch_size,
            shape.tiny_batch_size or shape.batch_size,
            ahead,
            machine=self._machine(question),
            runs_ahead=shape.on_device,
            training_cores=self._training_cores,
            delivery_seconds=self.service.warm.delivery_seconds,
        )
        seconds = simulate(setup).epoch_seconds(shape.steps or steps, min(ahead, steps // 2))
        return self._prediction(question, seconds, step, shape.steps or steps)

    def _prediction(
        self, question: Question, seconds: float, step: float, steps: int | None = None
    ) -> Prediction:
        shape = self.shape
        steps = steps or shape.steps or 1
        samples = shape.samples if shape.steps and shape.samples else steps * shape.batch_size
        rate = min(samples, steps * shape.batch_size) / seconds
        waits = max(0.0, 1 - steps * step / seconds)
        return Prediction(question, seconds if shape.steps else None, rate, waits)

    def _in_process(self, question: Question) -> float:
        """Seconds of a sample in the training process."""
        seconds = self.service.warm.service_seconds
        storage = self._machine(question).storage
        if storage is None or self.service.reads is None:
            return seconds
        waiting = storage.latency + storage.wake + self.service.reads.mean_bytes / storage.bandwidth
        return seconds + (1 - self.file_share(question)) * waiting

    def _machine(self, question: Question) -> MachineModel:
        reads, storage = self.service.reads, None
        if question.storage is not None:
            wake = self.service.wake_seconds
            own = question.storage / self.shape.ranks
            storage = Storage(own, wake=wake) if own else None
        elif reads is not None and reads.storage is not None and self.shape.samples:
            storage = Storage(reads.storage, reads.latency)
        if self.file_share(question) == 1:
            storage = None
        return MachineModel(self.shape.cores, self._beside, self._measured, storage)

    def file_share(self, question: Question) -> float:
        """Returns the fraction of the samples, 0 to 1, whose files are in the file cache.

        It is assumed to keep what it has. The kernel's own evicts files that are still needed, and
        has fewer of them (Mohan et al., PVLDB 14(5), 2021, §4.3.2).
        """
        reads, samples = self.service.reads, self.shape.samples
        limit = question.file_cache
        if limit is None and question.storage is not None:
            return 0.0
        if reads is None or not samples:
            return 0.0 if limit is None else limit.share
        if limit is None:
            limit = FileCacheLimit(int(_FILE_CACHE * self.shape.memory_bytes))
        return limit.share_of(samples * reads.mean_bytes)

    @property
    def cached(self) -> float:
        """The share of the samples that today's decoded cache has room for."""
        kept, samples = self.service.cached, self.shape.samples
        if kept is None or not samples or not kept.stored_bytes:
            return 0.0
        return min(1.0, self.shape.cache_bytes / (kept.stored_bytes * samples))

    def _deck(self, question: Question, rate: float) -> Deck:
        mean = self.sample_seconds()
        costs = self.service.costs or [SampleCost(0, mean, 0.0)]
        scale = mean * len(costs) / sum(each.seconds for each in costs)
        longer = self._other_waiting() if self._waiting else 0.0
        hit = mean if self.service.cached is None else self.sample_seconds(self.service.cached)
        return Deck(
            [SampleCost(n, seconds * scale, waiting * longer) for n, seconds, waiting in costs],
            hit,
            self.cached if question.cache is None else question.cache,
            self.file_share(question),
            models={_MODEL: rate},
        )

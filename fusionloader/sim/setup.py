"""The setups that are simulated, and their outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusionloader.scheduler.sharing import Mode
from fusionloader.sim.times import ServiceTimes


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to prepare data.

    ``mode`` is fixed, or ``None`` where ``SharingChoice`` decides. Without ``ahead_of_time`` the
    GPU worker builds its task at every launch. ``affinity`` is size-sorted tiny-batches and the
    threshold search; ``group`` the tiny-batches of a launch, ``None`` where ``GroupSize`` decides.
    """

    name: str
    mode: Mode | None
    cpu: bool = True
    ahead_of_time: bool = True
    affinity: bool = True
    group: int | None = None


CPU_ONLY = Variant("CPU only", Mode.OFF)
# As a GPU pipeline does it: the whole mini-batch at once, beside training.
GPU_ONLY = Variant("GPU only", Mode.SPATIAL, cpu=False, affinity=False, group=1 << 16)
BOTH = Variant("CPU and GPU", None)

NAIVE = Variant("none", Mode.SPATIAL, ahead_of_time=False, affinity=False, group=1)
AHEAD = Variant("ahead of time", Mode.SPATIAL, affinity=False, group=1)
AFFINE = Variant("+ TAAS", Mode.SPATIAL, group=1)
ALL = Variant("all", None)


@dataclass(frozen=True, slots=True)
class Setup:
    """One simulated training.

    ``model`` names the training's speed in the service times; ``None`` takes batches as fast as
    they come. ``workers_at`` changes the number of CPU workers at training iterations.
    """

    times: ServiceTimes
    variant: Variant
    cpu_workers: int
    model: str | None = None
    iterations: int = 300
    batch_size: int = 256
    tiny_batch_size: int = 4
    in_flight: int = 4
    workers_at: dict[int, int] = field(default_factory=dict)
    seed: int = 0

    @property
    def step_seconds(self) -> float:
        """Seconds of a training step alone on the device."""
        return self.batch_size / self.times.models[self.model] if self.model else 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """The start of a training step: its time, and the schedulers' state."""

    time: float
    cpu_workers: int
    threshold: int
    restarts: int
    group: int
    mode: Mode
    profiling: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """The steps of a training and the moment when the last mini-batch was complete.

    ``work`` has for every tiny-batch, mini-batch by mini-batch, the seconds that it takes a CPU
    worker, and the device without the cost of a launch.
    """

    setup: Setup
    steps: list[Step]
    makespan: float
    work: list[list[tuple[float, float]]]

    def rate(self, first: int, last: int | None = None) -> float:
        """Samples per second between two steps, the last one by default."""
        last = len(self.steps) - 1 if last is None else last
        seconds = self.steps[last].time - self.steps[first].time
        return (last - first) * self.setup.batch_size / seconds

    def longest_wait(self, first: int, last: int) -> float:
        """The longest time between two consecutive steps, in seconds."""
        times = [step.time for step in self.steps[first : last + 1]]
        return max(after - before for before, after in zip(times[:-1], times[1:], strict=True))

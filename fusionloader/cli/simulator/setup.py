"""The setups that are simulated, and their outcomes."""

from __future__ import annotations

from dataclasses import dataclass, field

from fusionloader.cli.simulator.machine import MachineModel
from fusionloader.cli.simulator.times import Times
from fusionloader.scheduler.gpu_sharing import Mode


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
class SimulationSetup:
    """One simulated training.

    ``model`` names the training's speed in the service times; ``None`` takes batches as fast as
    they come. ``workers_at`` changes the number of CPU workers at training iterations.

    A training that ``runs_ahead`` asks for a batch as soon as the step before is enqueued on the
    device; another one when that step is done. A step that keeps ``training_cores`` busy competes
    with the workers for them. Each batch costs the training process ``delivery_seconds`` of a core.
    """

    times: Times
    variant: Variant
    cpu_workers: int
    model: str | None = None
    iterations: int = 300
    batch_size: int = 256
    tiny_batch_size: int = 4
    in_flight: int = 4
    workers_at: dict[int, int] = field(default_factory=dict)
    seed: int = 0
    machine: MachineModel = MachineModel()
    runs_ahead: bool = True
    training_cores: float = 0.0
    delivery_seconds: float = 0.0

    @property
    def step_seconds(self) -> float:
        """Seconds of a training step alone on the device."""
        return self.batch_size / self.times.models[self.model] if self.model else 0.0


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """The start of a training step: its time, and the schedulers' state."""

    time: float
    threshold: int
    restarts: int
    mode: Mode


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a simulated training: its steps, and when the last mini-batch was complete.

    ``work[b][t]`` has the seconds of tiny-batch t of mini-batch b on a CPU worker, and on the
    device without a launch.
    """

    setup: SimulationSetup
    steps: list[SimulatedStep]
    makespan: float
    work: list[list[tuple[float, float]]]

    def rate(self, first: int, last: int | None = None) -> float:
        """Samples per second between two steps, the last one by default."""
        last = len(self.steps) - 1 if last is None else last
        seconds = self.steps[last].time - self.steps[first].time
        return (last - first) * self.setup.batch_size / seconds

    def epoch_seconds(self, steps: int, settled: int) -> float:
        """Seconds of an epoch of so many steps, from asking for the first batch to the last step.

        Steps beyond those simulated are as long as the simulated ones from ``settled`` on.
        """
        times = self.steps
        if steps <= len(times):
            return times[steps - 1].time + self.setup.step_seconds
        rest = (steps - len(times)) * self.setup.batch_size / self.rate(settled)
        return times[-1].time + rest + self.setup.step_seconds

    def longest_wait(self, first: int, last: int) -> float:
        """The longest time between two consecutive steps, in seconds."""
        times = [step.time for step in self.steps[first : last + 1]]
        return max(after - before for before, after in zip(times[:-1], times[1:], strict=True))

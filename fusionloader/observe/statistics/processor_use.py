"""What workers and training got of the machine's processors, and who had the rest."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from fusionloader.system.limits.control_groups import cpu_quota
from fusionloader.system.limits.processors import ProcessorCounts, cores_allowed

ShortageCause = Literal["throttled", "others", "own"]

# Fractions from which on processors are what is missing.
_THROTTLED = 0.2  # of the periods of a quota
_DELAYED = 0.2  # of workers' time
_UNDER_PRESSURE = 0.5  # of the time, where the delays of workers are not known
_ALL_CORES = 0.75  # of the cores, which are then busy with this training
_SHORTEST = 0.25  # seconds between two looks at the kernel's counts


@dataclass(frozen=True, slots=True)
class CoreShortage:
    """Why workers do not get the cores that they could use.

    Attributes:
        cause: ``"throttled"``: a CPU quota stops the process. ``"others"``: other processes have
            the cores. ``"own"``: workers and training have all of them.
        sentence: the same in words, to follow a colon or begin a sentence in lower case.
        remedy: what to do about it, as a sentence; code is between backticks.
    """

    cause: ShortageCause
    sentence: str
    remedy: str


@dataclass(frozen=True, slots=True)
class ProcessorUse:
    """What workers and training got of the processors while epochs were under way.

    Seconds are sums over epochs. Where a loader has no workers, training makes the samples.

    Attributes:
        cores: number of cores that the training may use, by affinity and quota.
        quota: CPU quota of the process's control groups, in cores; ``None`` without one.
        seconds: wall time of the epochs.
        training_cpu_seconds: processor time of the training process, all of its threads.
        training_delay_seconds: time that the training thread was ready to run while other threads
            had the cores; 0 where the kernel does not count it.
        pressure_seconds: time in which some process of the machine waited for a core; ``None``
            where the kernel does not count it.
        periods: periods of the quota that is exhausted most often; 0 without a quota.
        throttled_periods: those of them in which the training's processes were stopped.
        busy_seconds: wall time that CPU workers have spent on samples.
        cpu_seconds: processor time of CPU workers.
        delay_seconds: time that CPU workers were ready to run while other threads had the cores;
            0 where the kernel does not count it.
    """

    cores: float
    quota: float | None
    seconds: float = 0.0
    training_cpu_seconds: float = 0.0
    training_delay_seconds: float = 0.0
    pressure_seconds: float | None = None
    periods: int = 0
    throttled_periods: int = 0
    busy_seconds: float = 0.0
    cpu_seconds: float = 0.0
    delay_seconds: float = 0.0

    @property
    def worker_share(self) -> float | None:
        """Share of a core that a worker got while it could run, 0 to 1; ``None`` if unknown."""
        ready = self.cpu_seconds + self.delay_seconds
        return self.cpu_seconds / ready if ready and self.delay_seconds else None

    @property
    def blocked_share(self) -> float | None:
        """Share of CPU workers' busy time in which they waited for something else than a core."""
        if not self._knows_workers:
            return None
        return max(1 - (self.cpu_seconds + self.delay_seconds) / self.busy_seconds, 0.0)

    @property
    def throttled_share(self) -> float | None:
        """Share of the quota's periods in which it stopped the process; ``None`` without any."""
        return self.throttled_periods / self.periods if self.periods else None

    @property
    def own_cores(self) -> float:
        """Number of cores that workers and training have used, on average."""
        used = self.cpu_seconds + self.training_cpu_seconds
        return used / self.seconds if self.seconds else 0.0

    def shortage(self) -> CoreShortage | None:
        """Returns why workers got less than they could use; ``None`` if they got enough."""
        throttled = self.throttled_share or 0.0
        if self.quota is not None and throttled >= _THROTTLED:
            return CoreShortage(
                "throttled",
                f"the container is throttled to its CPU quota of {_cores(self.quota)}, in "
                f"{throttled:.0%} of the periods",
                "A higher quota helps (`docker run --cpus`, `resources.limits.cpu` in Kubernetes). "
                "More workers would be throttled, too.",
            )
        if not self._is_short:
            return None
        got = "" if self.worker_share is None else f"workers got {self.worker_share:.0%} of a core"
        if not self._knows_workers and self._training_share is not None:
            got = f"the training process got {self._training_share:.0%} of a core"
        if self.own_cores < _ALL_CORES * self.cores:
            each = " each" if got.startswith("workers") else ""
            return CoreShortage(
                "others",
                f"{got}{each}, and other processes take the rest"
                if got
                else f"other processes take the {_cores(self.cores)}",
                "Free cores help: end the other processes (`top` shows them), or train elsewhere. "
                "More workers would get no more of the cores.",
            )
        return CoreShortage(
            "own",
            f"its {_cores(self.cores)} {'is' if self.cores == 1 else 'are'} busy with workers and "
            f"training{f', and {got} each' if got.startswith('workers') else ''}",
            "More cores help, or less work for a sample. More workers would get no more of them.",
        )

    @property
    def _knows_workers(self) -> bool:
        return self.busy_seconds > 0 and self.cpu_seconds > 0

    @property
    def _training_share(self) -> float | None:
        ready = self.training_cpu_seconds + self.training_delay_seconds
        return self.training_cpu_seconds / ready if self.training_delay_seconds else None

    @property
    def _is_short(self) -> bool:
        if self._knows_workers:
            delay, at_work = self.delay_seconds, self.busy_seconds
        else:
            delay, at_work = self.training_delay_seconds, self.seconds
        if delay:  # and not rather storage, where that takes more of their time
            return delay >= max(_DELAYED, self.blocked_share or 0.0) * at_work
        return (self.pressure_seconds or 0.0) >= _UNDER_PRESSURE * self.seconds > 0

    def since(self, before: ProcessorUse) -> ProcessorUse:
        """Returns the use after ``before``, an earlier value of the same loader."""
        return _added(self, before, -1)

    def plus(self, earlier: ProcessorUse) -> ProcessorUse:
        """Returns the sums of both, and the cores of this one."""
        return _added(self, earlier, 1)


_GAUGES = ("cores", "quota")


def _added(use: ProcessorUse, other: ProcessorUse, sign: int) -> ProcessorUse:
    sums: dict[str, Any] = {}
    for name in (each.name for each in fields(ProcessorUse) if each.name not in _GAUGES):
        mine, theirs = getattr(use, name), getattr(other, name)
        sums[name] = None if mine is theirs is None else (mine or 0) + sign * (theirs or 0)
    return replace(use, **sums)


def _cores(number: float) -> str:
    return f"{number:g} core{'s' * (number != 1)}"


class ProcessorWatch:
    """Looks at the kernel's counts as epochs begin and end, and when it is asked; never between.

    Any thread may ask, while one trains.
    """

    def __init__(self) -> None:
        self._seen: tuple[ProcessorUse, ProcessorCounts | None] = (ProcessorUse(0, None), None)

    def epoch_began(self) -> None:
        """Counts from now on."""
        use, since = self._seen
        if since is None:
            self._seen = use, ProcessorCounts.now()

    def epoch_ended(self) -> None:
        """Counts no more until the next epoch; between short epochs it counts on."""
        use, since = self._seen
        if since is not None and time.monotonic() - since.seconds >= _SHORTEST:
            self._seen = use.plus(_between(since)), None

    def use(self, busy_seconds: float, cpu_seconds: float, delay_seconds: float) -> ProcessorUse:
        """Returns what was counted until now, beside what workers have counted themselves."""
        use, since = self._seen
        if since is not None:
            use = use.plus(_between(since))
        quota = cpu_quota() if use.periods else None  # a group without a quota has no periods
        return replace(
            use,
            cores=min(cores_allowed(), quota or float("inf")),
            quota=quota,
            busy_seconds=busy_seconds,
            cpu_seconds=cpu_seconds,
            delay_seconds=delay_seconds,
        )


def _between(since: ProcessorCounts) -> ProcessorUse:
    """Returns what the kernel has counted since then."""
    now = ProcessorCounts.now(since.thread)
    pairs = zip(since.periods, now.periods, strict=False)
    passed = [(b[0] - a[0], b[1] - a[1]) for a, b in pairs]
    periods, throttled = max(passed, key=lambda each: each[1], default=(0, 0))
    known = since.pressure_seconds is not None and now.pressure_seconds is not None
    return ProcessorUse(
        0,
        None,
        seconds=now.seconds - since.seconds,
        training_cpu_seconds=now.process_seconds - since.process_seconds,
        training_delay_seconds=max(now.delay_seconds - since.delay_seconds, 0.0),
        pressure_seconds=(now.pressure_seconds or 0.0) - (since.pressure_seconds or 0.0)
        if known
        else None,
        periods=periods,
        throttled_periods=throttled,
    )

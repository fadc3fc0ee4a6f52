"""Service times: a JSON file of measured and of assumed times. See docs/observe/simulation.md."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fusionloader.scheduler.tiny_batches import order_by_size

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample's size in bytes and the seconds that a CPU worker and the GPU worker take for it.

    ``stored_bytes`` of it come from a storage that is simulated. Before it is made, its worker
    waits ``waiting`` seconds without a core, such as for a database.
    """

    nbytes: int
    cpu_seconds: float
    gpu_seconds: float
    stored_bytes: int = 0
    waiting: float = 0.0


@dataclass(frozen=True, slots=True)
class GpuTimes:
    """The GPU worker's costs in seconds.

    A launch costs ``launch`` once, and ``build`` as well if its task was not built ahead of time.
    On the device it costs ``sample`` per sample and ``byte`` per byte of them. ``beside_training``
    and ``training_beside`` are the relative speeds of worker and training while both use it.
    """

    launch: float
    build: float
    sample: float
    byte: float
    beside_training: float
    training_beside: float


class Times(Protocol):
    """Where the costs of a simulated training come from."""

    @property
    def gpu(self) -> GpuTimes:
        """The GPU worker's."""

    @property
    def models(self) -> Mapping[str, float]:
        """Samples per second of training on data that is already on the device, by name."""

    def draw(self, source: random.Random, count: int) -> list[Sample]:
        """Returns the samples of a mini-batch."""


def draw_tiny_batches(
    times: Times, source: random.Random, batch_size: int, size: int, by_size: bool = True
) -> list[list[Sample]]:
    """Returns a mini-batch in tiny-batches of ``size`` samples, ``by_size`` the smallest first."""
    samples = times.draw(source, batch_size)
    if by_size:
        samples = [samples[i] for i in order_by_size([sample.nbytes for sample in samples])]
    return [samples[start : start + size] for start in range(0, batch_size, size)]


@dataclass(frozen=True, slots=True)
class ServiceTimes:
    """The contents of a file.

    ``measured`` has a pair (bytes, seconds of a CPU core) for every sample measured. ``models`` has
    the samples per second of training on data that is already on the device.
    """

    name: str
    measured: tuple[tuple[int, float], ...]
    gpu: GpuTimes
    models: dict[str, float]

    @property
    def mean_seconds(self) -> float:
        """CPU seconds of a worker for a sample."""
        return sum(seconds for _, seconds in self.measured) / len(self.measured)

    @property
    def mean_bytes(self) -> float:
        """Encoded bytes of a sample."""
        return sum(nbytes for nbytes, _ in self.measured) / len(self.measured)

    def draw(self, source: random.Random, count: int) -> list[Sample]:
        """Returns samples drawn from the measured ones: sizes, times and tails stay together."""
        return [
            Sample(nbytes, seconds, self.gpu.sample + self.gpu.byte * nbytes)
            for nbytes, seconds in source.choices(self.measured, k=count)
        ]


def load(path: Path) -> ServiceTimes:
    """Reads a file of service times.

    Raises:
        OSError: it cannot be read.
        ValueError: it does not have this format; the message says why.
    """
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    try:
        return _parsed(path.stem, found)
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is no file of service times: {error!r} (format {FORMAT})") from (
            error
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _parsed(name: str, found: Any) -> ServiceTimes:
    if found["format"] != FORMAT:
        raise ValueError(f"format {found['format']!r}, expected {FORMAT}")
    cpu = found["cpu"]
    if len(cpu["bytes"]) != len(cpu["milliseconds"]) or not cpu["bytes"]:
        raise ValueError("cpu.bytes and cpu.milliseconds need as many entries, at least one")
    measured = tuple(
        (int(nbytes), _positive(ms, "cpu.milliseconds") / 1e3)
        for nbytes, ms in zip(cpu["bytes"], cpu["milliseconds"], strict=True)
    )
    gpu = found["gpu"]
    return ServiceTimes(
        name,
        measured,
        GpuTimes(
            launch=gpu["launch_milliseconds"] / 1e3,
            build=gpu["build_milliseconds"] / 1e3,
            sample=_positive(gpu["milliseconds_per_sample"], "gpu.milliseconds_per_sample") / 1e3,
            byte=gpu["nanoseconds_per_byte"] / 1e9,
            beside_training=_positive(gpu["speed_beside_training"], "gpu.speed_beside_training"),
            training_beside=_positive(gpu["training_speed_beside"], "gpu.training_speed_beside"),
        ),
        {
            model: _positive(rate, f"models {model}")
            for model, rate in found["models"]["samples_per_second"].items()
        },
    )


def _positive(value: float, name: str) -> float:
    if not value > 0:
        raise ValueError(f"{name} must be above 0, not {value!r}")
    return float(value)

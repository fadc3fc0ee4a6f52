"""Processors: which, how many of them may be used, and how busy they are."""

from __future__ import annotations

import os
from collections.abc import Iterator

from fusionloader.cli.doctor.check import Check, warn_if
from fusionloader.cli.environment import cpu_model, simd_level
from fusionloader.system.limits.control_groups import cpu_quota
from fusionloader.system.limits.processors import recent_pressure, throttled_share


def checks() -> Iterator[Check]:
    """Yields the processor, its instruction set, cores, quota and load."""
    yield Check("processor", cpu_model())
    yield instruction_set()
    yield cores_allowed()
    yield quota()
    yield load()


def instruction_set() -> Check:
    """The widest vectors that there is code for."""
    level = simd_level()
    slower = {
        "SSE4.1": "augmenting is vectorised with AVX2: a sample takes up to 1.5 times as long",
        "NEON": "augmenting is vectorised with AVX2: a sample takes up to 1.5 times as long",
        "none known": "no AVX2, SSE4.1 or NEON: decoding and resizing run at a fraction",
    }
    if level not in slower:
        return Check("instruction set", level)
    remedy = "a virtual machine may hide vectors: ask for its host's processor (-cpu host)"
    return Check("instruction set", f"{level}; {slower[level]}", "warn", remedy)


def cores_allowed() -> Check:
    """The cores that this process may run on."""
    cores = sorted(os.sched_getaffinity(0))
    machine = os.cpu_count() or len(cores)
    return warn_if(
        len(cores) < machine,
        "cores allowed",
        f"{len(cores)} ({ranges(cores)}) of {machine}",
        f"num_workers={len(cores)} at most, or ask for more: taskset, cpuset, the batch system",
    )


def quota() -> Check:
    """The time that control groups give, in cores."""
    allowed, cores = cpu_quota(), len(os.sched_getaffinity(0))
    throttled = throttled_share() if allowed is not None else None
    often = "" if throttled is None else f", used up in {throttled:.0%} of the periods until now"
    return warn_if(
        allowed is not None and allowed < cores,
        "CPU quota",
        "none" if allowed is None else f"{allowed:g} cores' time on {cores} cores{often}",
        f"num_workers={max(1, int(allowed or 0))}: more are throttled; or raise it: "
        f"docker run --cpus={cores}",
    )


def load() -> Check:
    """What other processes are running."""
    average, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    pressure = recent_pressure()
    waited = "" if pressure is None else f"; processes waited for one {pressure:.0%} of the time"
    return warn_if(
        average > cores,
        "load",
        f"{average:.1f} on {cores} cores{waited}",
        "other processes take the cores from workers: top shows them; measurements will be noisy",
    )


def ranges(numbers: list[int]) -> str:
    """Returns sorted numbers as ranges: 0-3, 8."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)

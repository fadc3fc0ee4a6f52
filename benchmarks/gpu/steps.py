"""Steps of a run: processes with a limit of time, whose results are kept as they come."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fusionloader.cli.environment import provenance

ROOT = Path(__file__).parents[2]
_TAIL = 4000  # characters of what a step has said that are kept
_ENDING_SECONDS = 5.0
JSON = "{json}"
"""In a command: the file to which the step adds its figures, a JSON line each."""


@dataclass(frozen=True, slots=True)
class Step:
    """One process.

    Attributes:
        name: of its results.
        command: behind ``python3``.
        seconds: that it may take.
        rehearsal: what the command has besides without a device.
        brief: and what it has besides, where the rehearsal is to be short.
    """

    name: str
    command: Sequence[str]
    seconds: float
    rehearsal: Sequence[str] = ()
    brief: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """Steps that take at most so many seconds together."""

    seconds: float
    steps: Sequence[Step]


def run_steps(steps: Sequence[Step], file: Path, seconds: float, rehearsal: str = "") -> int:
    """Runs steps one after the other, and writes what is known after each.

    What there is no time for any more is noted as skipped.

    Args:
        steps: in the order of their worth.
        file: for the results, as JSON. Beside it each step has a file for its figures, which it
            writes itself, so that they are there whatever ends it, or this process.
        seconds: for all of them.
        rehearsal: whether the device is played, ``"brief"`` for a short one.

    Returns:
        0 if every step has passed, else 1.
    """
    results: dict[str, Any] = {**provenance(), "rehearsal": rehearsal, "steps": {}}
    file.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    for step in steps:
        left = deadline - time.monotonic()
        if left < _ENDING_SECONDS:
            found: dict[str, Any] = {"status": "skipped: no time was left"}
        else:
            name = re.sub("[^a-z0-9]+", "_", step.name.lower())
            figures = file.with_name(f"{file.stem}.{name}.jsonl")
            found = _done(step, figures, min(step.seconds, left), rehearsal)
        results["steps"][step.name] = found
        _write(file, results)
        print(f"{step.name}: {found['status']}, {found.get('seconds', 0)} s", flush=True)
        if found["status"] != "passed":
            print(found.get("said", ""), flush=True)
    return int(any(found["status"] != "passed" for found in results["steps"].values()))


def _done(step: Step, figures: Path, seconds: float, rehearsal: str) -> dict[str, Any]:
    """Runs a step; returns its status, the seconds it took, its figures and its last words."""
    figures.unlink(missing_ok=True)
    asked = [*step.command, *(step.rehearsal if rehearsal else ())]
    asked += step.brief if rehearsal == "brief" else ()
    command = [part.replace(JSON, str(figures.resolve())) for part in asked]
    paths = [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-u", *command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=seconds)
        status = "passed" if process.returncode == 0 else f"failed: status {process.returncode}"
    except subprocess.TimeoutExpired:
        said, status = _end(process), f"no end within {seconds:.0f} s"
    found: dict[str, Any] = {"status": status, "seconds": round(time.monotonic() - began, 1)}
    if figures.exists():  # the last line may be a part of one
        lines = figures.read_text().split("\n")[:-1]
        found["figures"] = [json.loads(line) for line in lines]
    return {**found, "said": said[-_TAIL:]}


def _end(process: subprocess.Popen[str]) -> str:
    """Ends a process and those it has started; returns what it has said."""
    os.killpg(process.pid, signal.SIGTERM)
    try:
        said, _ = process.communicate(timeout=_ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
    return said


def _write(file: Path, results: dict[str, Any]) -> None:
    """Writes the results so that a reader never sees a part of them."""
    made = file.with_suffix(".new")
    made.write_text(json.dumps(results, indent=1))
    made.replace(file)

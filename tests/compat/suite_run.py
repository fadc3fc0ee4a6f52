"""Runs one suite in a pytest of its own, past tests that hang or end the process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_GRACE = 60  # seconds beyond a test's own limit until pytest itself counts as hanging
_LEAVING = 15  # workers look every 5 s whether their parent lives


@dataclass
class Found:
    """What became of a test."""

    outcome: str = ""
    seconds: float = 0.0
    said: str = ""
    iterators: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class SuiteRun:
    """A suite, the class that it is run with, and how.

    Attributes:
        suite: ``"torch"`` or ``"stateful"``.
        source: its file or folder.
        ours: whether FusionLoader takes the class's place.
        start_method: of multiprocessing.
        seconds: that a test may take.
        select: what pytest's ``-k`` takes; empty for all tests.
        slow: whether to run the tests that PyTorch marks as slow, too.
        log: where pytest's output goes.
    """

    suite: str
    source: Path
    ours: bool
    start_method: str
    seconds: float
    select: str
    slow: bool
    log: Path

    def run(self) -> dict[str, Found]:
        """Returns what became of each test."""
        tests: dict[str, Found] = {}
        with tempfile.TemporaryDirectory(prefix="compliance-") as folder:
            events = Path(folder, "events")
            events.touch()
            hook = "import substitution\nsubstitution.install()\n"
            Path(folder, "sitecustomize.py").write_text(hook)
            while True:
                code, ended = self._run_pytest(events, folder, tests)
                running, since = read_events(events, tests)
                if running is None:
                    break
                seconds = ended - since
                hung = seconds >= self.seconds - 1
                said = "hung" if hung else f"ended pytest, which exited with {code}"
                found = tests.setdefault(running, Found())
                found.outcome, found.said, found.seconds = "failed", said, round(seconds, 1)
                with events.open("a") as file:
                    file.write(json.dumps({"test": running, "ends": True}) + "\n")
        return {name: found for name, found in tests.items() if found.outcome}

    def _run_pytest(
        self, events: Path, folder: str, tests: dict[str, Found]
    ) -> tuple[int | None, float]:
        """Returns its exit code, ``None`` if it hung, and when that was."""
        root = self.source if self.source.is_dir() else self.source.parent
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-c", os.devnull]
        command += ["--rootdir", str(root), "-p", "substitution", "-p", "no:cacheprovider"]
        command += ["--continue-on-collection-errors", "-W", "ignore::pytest.PytestWarning"]
        command += ["--timeout", str(self.seconds), "--timeout-method=thread"]
        command += ["-k", self.select] if self.select else []
        paths = [folder, str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "COMPLIANCE_SUITE": self.suite,
            "COMPLIANCE_CLASS": "ours" if self.ours else "original",
            "COMPLIANCE_START_METHOD": self.start_method,
            "COMPLIANCE_EVENTS": str(events),
            "COMPLIANCE_DONE": "\n".join(name for name, found in tests.items() if found.outcome),
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTORCH_TEST_WITH_SLOW": str(int(self.slow)),
        }
        with self.log.open("a") as log:
            pytest = subprocess.Popen(
                [*command, str(self.source)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        code = None
        try:
            changed, size = time.monotonic(), events.stat().st_size
            while pytest.poll() is None and time.monotonic() - changed < self.seconds + _GRACE:
                time.sleep(0.2)
                if events.stat().st_size != size:
                    changed, size = time.monotonic(), events.stat().st_size
            code, ended = pytest.poll(), time.time()
        finally:
            _end_group(pytest, wait=code is not None)
        return code, ended


def read_events(path: Path, tests: dict[str, Found]) -> tuple[str | None, float]:
    """Adds what the events tell to ``tests``.

    Returns the test that has begun and not ended, and when it began.
    """
    running, since = None, 0.0
    for line in path.read_text().splitlines():
        event: dict[str, Any] = json.loads(line)
        name = event["test"]
        if "begins" in event:
            running, since = name, event["begins"]
            continue
        if "ends" in event:
            running = None
            continue
        found = tests.setdefault(name, Found())
        if "iterator" in event:
            found.iterators = sorted({*found.iterators, event["iterator"]})
        elif found.outcome != "failed":  # whatever its teardown says
            found.outcome, found.seconds = event["outcome"], event["seconds"]
            found.said = event["said"]
    return running, since


def _end_group(pytest: subprocess.Popen[bytes], wait: bool) -> None:
    """Ends pytest and what it left behind, which is given time to end by itself."""
    deadline = time.monotonic() + (_LEAVING if wait else 0)
    while any(_members(pytest.pid)):
        if time.monotonic() > deadline:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pytest.pid, signal.SIGKILL)
            break
        time.sleep(0.2)
    pytest.wait()


def _members(group: int) -> Iterator[int]:
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getpgid(pid) == group:
                yield pid

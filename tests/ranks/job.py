"""Several ranks as processes of their own, as torchrun starts them, and what becomes of them."""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

SCRIPT = Path(__file__).with_name("rank_script.py")
ROOT = SCRIPT.parents[2]
# Rank 1 has the large images. Rank 0 takes its time between batches, so that its worker is idle.
UNEVEN = {"options": {0: {"step_seconds": 0.15}}, "large_rank": 1}


class Rank:
    """A process running ``rank_script.py``, and what it has printed so far."""

    def __init__(self, root, environment, options):
        path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
        self.lines = []
        self._told = threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(root), *(f"{k}={v}" for k, v in options.items())],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, **environment},
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._told:
                self.lines.append(line.strip())
                self._told.notify_all()
        with self._told:
            self.lines.append("end")
            self._told.notify_all()

    def of(self, kind):
        """What follows the word in the lines that begin with it."""
        with self._told:
            return [line.partition(" ")[2] for line in self.lines if line.startswith(kind)]

    def wait_for(self, kind, count=1, seconds=60):
        def there():
            return "end" in self.lines or sum(ln.startswith(kind) for ln in self.lines) >= count

        with self._told:
            assert self._told.wait_for(there, seconds), f"no {kind}: {self.lines[-3:]}"

    def finish(self):
        """Waits for its end; returns the digests of its batches and its counters."""
        self.wait_for("end")
        assert self.process.wait(20) == 0, self.lines[-5:]
        return self.of("batch"), json.loads(self.of("stats")[-1])


class Job:
    """Ranks of one machine; nothing of them is left when it is closed."""

    def __init__(self, root, ranks=2, environments=None, options=None, id=None, **common):
        self.id = id or f"test-{secrets.token_hex(8)}"
        self.ranks = []
        for rank in range(ranks):
            environment = {
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(ranks),
                "TORCHELASTIC_RUN_ID": self.id,
                **((environments or {}).get(rank, {})),
            }
            own = {**common, **((options or {}).get(rank, {}))}
            self.ranks.append(Rank(root, environment, own))

    def managers(self):
        """Global managers that a rank of this job has started, as far as the rank lives."""
        found = []
        for rank in self.ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(rank.process.pid).children():
                    if is_manager(child):
                        found.append(child)
        return found

    def manager(self, seconds=30):
        """The one that is there, waited for."""
        deadline = time.monotonic() + seconds
        while not (found := self.managers()):
            assert time.monotonic() < deadline, "no global manager"
            time.sleep(0.01)
        return found[0]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.kill()
            rank.process.wait()


def is_manager(process):
    with contextlib.suppress(psutil.Error):
        return any("runtime.global_manager" in word for word in process.cmdline())
    return False


def lives(pid):
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it has not come to that"
        time.sleep(0.02)


def shared_objects():
    return {name for name in os.listdir("/dev/shm") if "fusionloader" in name}


def children(rank):
    try:
        return psutil.Process(rank.process.pid).children()
    except psutil.NoSuchProcess:
        return []

"""Several ranks as separate processes, as torchrun starts them, and what they print."""

import contextlib
import json
import os
import secrets
import threading
from itertools import pairwise
from pathlib import Path

import psutil
from support import warm_start
from support.waiting import PATIENCE, wait_until

from fusionloader.observe.trace.files import read_timeline
from fusionloader.sharing.ranks.discovery import ranks_here
from fusionloader.system import fd_messages

SCRIPT = Path(__file__).with_name("rank_script.py")
ROOT = SCRIPT.parents[2]
MINI_BATCH = 8  # samples, as in rank_script.py
# Rank 1 has the large images. Rank 0 takes its time between batches, so that its worker is idle.
UNEVEN = {"options": {0: {"step_seconds": 0.15}}, "large_rank": 1}


def assert_borrowed_workers_are_in(trace):
    """They have spans and the instants of their coming in the trace of the rank that had them."""
    timeline = read_timeline(trace)
    borrowed = {w.number for w in timeline.meta.workers if w.kind == "borrowed"}
    assert borrowed & {span.worker for span in timeline.spans}
    assert borrowed == {each.worker for each in timeline.instants if each.kind == "borrowed"}


class Rank:
    """A process running ``rank_script.py``, and what it has printed so far."""

    def __init__(self, root, environment, options):
        self.lines = []
        self._printed = threading.Condition()
        self.process = warm_start.start(
            SCRIPT,
            str(root),
            *(f"{name}={value}" for name, value in options.items()),
            path=[str(ROOT), str(ROOT / "tests")],
            **environment,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self._printed:
                self.lines.append(line.strip())
                self._printed.notify_all()
        with self._printed:
            self.lines.append("end")
            self._printed.notify_all()

    def of(self, kind):
        """What follows the word in the lines that begin with it."""
        with self._printed:
            return [line.partition(" ")[2] for line in self.lines if line.startswith(kind)]

    def wait_for(self, kind, count=1):
        def arrived():
            return "end" in self.lines or sum(ln.startswith(kind) for ln in self.lines) >= count

        with self._printed:
            assert self._printed.wait_for(arrived, PATIENCE), f"no {kind}: {self.lines[-3:]}"
            assert kind == "end" or "end" not in self.lines, f"it has ended: {self.lines[-5:]}"

    def wait_for_a_borrowed_worker(self):
        """Waits until a worker of another rank has made more for this one than a mini-batch.

        Then it has ended a claim, and the trace has a span of it.
        """
        seen = len(self.of("borrowed"))

        def has_borrowed():
            counts = [int(count) for count in self.of("borrowed")[seen:]]
            return sum(max(after - before, 0) for before, after in pairwise(counts)) > MINI_BATCH

        wait_until(lambda: has_borrowed() or self.of("end"), "no worker is borrowed")
        assert has_borrowed(), f"it has ended: {self.lines[-5:]}"

    def request_end(self):
        """Closes its input, so that it ends after its epochs."""
        self.process.stdin.close()

    def finish(self):
        """Ends it after its epochs; returns the digests of its batches and its counters."""
        self.request_end()
        self.wait_for("end")
        assert self.process.wait(PATIENCE) == 0, self.lines[-5:]
        return self.of("batch"), json.loads(self.of("stats")[-1])


class Job:
    """Ranks of one machine; ``__exit__`` kills what is left of them."""

    def __init__(self, root, ranks=2, environments=None, options=None, id=None, **common):
        self.id = id or f"test-{secrets.token_hex(8)}"
        self.ranks = []
        self._environment = {}
        for rank in range(ranks):
            environment = {
                "LOCAL_RANK": str(rank),
                "LOCAL_WORLD_SIZE": str(ranks),
                "TORCHELASTIC_RUN_ID": self.id,
                **((environments or {}).get(rank, {})),
            }
            of_rank = {**common, **((options or {}).get(rank, {}))}
            self.ranks.append(Rank(root, environment, of_rank))
            self._environment = {**os.environ, **environment}

    @property
    def pids(self):
        return [rank.process.pid for rank in self.ranks]

    def managers(self):
        """Global managers that live ranks of this job have started."""
        found = []
        for rank in self.ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(rank.process.pid).children():
                    if is_manager(child):
                        found.append(child)
        return found

    def manager(self, other_than=()):
        """The global manager that listens; one that was started beside it ends by itself."""
        address = ranks_here(self._environment).address

        def serves():
            connection = fd_messages.connect(address, PATIENCE)
            if connection is None:
                return None
            with connection, contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(fd_messages.peer_pid(connection))
                return None if process in other_than else process

        found = []
        wait_until(lambda: found.append(serves()) or found[-1], "no global manager")
        return found[-1]

    def finish(self):
        """Ends all ranks after their epochs; returns the digests of their batches."""
        for rank in self.ranks:
            rank.request_end()
        return [rank.finish()[0] for rank in self.ranks]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in self.ranks:
            rank.process.kill()
            rank.wait_for("end")
            rank.process.wait()
            rank.request_end()
            rank.process.stdout.close()


def is_manager(process):
    with contextlib.suppress(psutil.Error):
        return any("ranks.global_manager" in word for word in process.cmdline())
    return False


def children(rank):
    try:
        return psutil.Process(rank.process.pid).children()
    except psutil.NoSuchProcess:
        return []


def kill_workers(rank):
    """Kills a rank's workers; returns how many there were."""
    victims = [child for child in children(rank) if not is_manager(child)]
    for victim in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            victim.kill()
    return len(victims)

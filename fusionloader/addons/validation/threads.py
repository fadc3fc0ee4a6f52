"""Threads that evaluate, each with its own limit of torch's threads.

``torch.set_num_threads`` sets three things: OpenMP's limit of the calling thread, MKL's limit of
the calling thread, and a number of the process that threads take over when they first compute. The
third would limit threads that training starts later. It is therefore set back, by a thread that
ends at once, before ``limited`` returns. The limits of threads that compute already, training's
among them, never change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

import torch

from fusionloader.system.current_device import device_for_threads

Job = Callable[[], None]

_limits = threading.Lock()


class ValidationThread:
    """A daemon thread that runs jobs in turn; a job must not raise."""

    def __init__(self, name: str, begin: Job) -> None:
        """Starts the thread; ``begin`` is its first job."""
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self.submit(begin)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Runs a job after those submitted before."""
        self._jobs.put(job)

    def end(self) -> None:
        self._jobs.put(None)

    def join(self, seconds: float) -> None:
        """Waits at most ``seconds`` for the end."""
        self._thread.join(seconds)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job


def limited(names: Sequence[str], threads: int) -> list[ValidationThread]:
    """Returns threads that compute with at most ``threads`` threads of torch each."""
    with _limits:
        before = _in_a_thread(torch.get_num_threads)
        begun = threading.Barrier(len(names) + 1)
        set_device = device_for_threads()

        def begin() -> None:
            torch.get_num_threads()  # takes over the process's number now, not later
            torch.set_num_threads(threads)
            set_device()
            begun.wait()

        try:
            workers = [ValidationThread(name, begin) for name in names]
            begun.wait()
        finally:
            _in_a_thread(lambda: torch.set_num_threads(before))
        return workers


def _in_a_thread(call: Callable[[], int | None]) -> int:
    found: list[int | None] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0] or 0

"""Starting worker processes, by multiprocessing's methods or as a bare interpreter."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

# One at a time: a process that is forked while another thread starts one would keep the ends of its
# pipes, on whose closing that thread waits.
_starting = threading.Lock()
_JOIN_SECONDS = 0.05
_DYING_SECONDS = 5.0  # between the end of a process's connections and its own


class Process(Protocol):
    """A worker process as the manager uses it; ``multiprocessing.Process`` is one."""

    @property
    def pid(self) -> int | None:
        """Process id."""

    @property
    def exitcode(self) -> int | None:
        """Exit code, minus the signal's number, ``None`` while it runs."""

    def is_alive(self) -> bool:
        """Whether it runs."""

    def join(self, timeout: float | None = None) -> None:
        """Waits until it has ended, at most ``timeout`` seconds."""

    def terminate(self) -> None:
        """Sends SIGTERM."""

    def kill(self) -> None:
        """Sends SIGKILL."""


class BareProcess:
    """A fresh interpreter that runs ``module.main(argument)`` and imports nothing else.

    Unlike multiprocessing's spawn it neither imports the training script nor loads torch.
    """

    def __init__(
        self,
        module: str,
        argument: object,
        fds: tuple[int, ...],
        apart: bool = False,
        cpus: tuple[int, ...] = (),
    ) -> None:
        """``argument`` is pickled; ``fds`` are open in the process under the same numbers.

        With ``apart`` it has a session of its own and gets no signals of this process's group.
        With ``cpus`` it runs on these only.
        """
        package = str(Path(__file__).parents[2])
        path = [package, *(entry for entry in sys.path if entry != package)]
        code = (
            f"import sys; sys.path[:] = {path!r}; import pickle\n"
            f"from {module} import main\n"
            "main(pickle.load(sys.stdin.buffer))"
        )
        if cpus:
            bind = f"import os\ntry:\n os.sched_setaffinity(0, {cpus!r})\nexcept OSError: pass\n"
            code = bind + code
        pickled = pickle.dumps(argument, protocol=pickle.HIGHEST_PROTOCOL)
        with _starting:
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", "-s", "-c", code],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL if apart else None,
                pass_fds=fds,
                start_new_session=apart,
            )
            assert self._process.stdin is not None
            with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
                pipe.write(pickled)

    @property
    def pid(self) -> int | None:
        """Process id."""
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        """Exit code, minus the signal's number, ``None`` while it runs."""
        return self._process.poll()

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    def join(self, timeout: float | None = None) -> None:
        """Waits until it has ended, at most ``timeout`` seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Sends SIGKILL."""
        self._process.kill()


def _begin_anew_in_child() -> None:
    global _starting
    _starting = threading.Lock()  # the fork happened while it was held


os.register_at_fork(after_in_child=_begin_anew_in_child)


def start(
    context: Any, target: Callable[..., None], *args: object, cpus: tuple[int, ...] = ()
) -> Process:
    """Starts ``target(*args)`` in a daemonic process of a multiprocessing context.

    With ``cpus`` it runs on these only.
    """
    process = context.Process(target=_run_on, args=(cpus, target, *args))
    process.daemon = True
    with _starting:
        process.start()
    return process  # type: ignore[no-any-return]


def _run_on(cpus: tuple[int, ...], target: Callable[..., None], *args: object) -> None:
    global _initial_affinity
    if cpus:
        _initial_affinity = os.sched_getaffinity(0)
        with contextlib.suppress(OSError):  # the container may have lost them since
            os.sched_setaffinity(0, cpus)
    target(*args)


def parent_of(method: str) -> int:
    """Returns the pid that workers watch, 0 for "whoever starts you" (a fork server)."""
    return 0 if method == "forkserver" else os.getpid()


_initial_affinity: set[int] | None = None  # the CPUs of this process before it was bound to a few


def restore_affinity() -> None:
    """Undoes the choice of CPUs that this process was started with."""
    if _initial_affinity is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, _initial_affinity)


def end(
    processes: list[Process], patience: float, meanwhile: Callable[[], None] | None = None
) -> None:
    """Waits ``patience`` seconds for processes that are to stop, then kills them.

    ``meanwhile`` is called repeatedly: the processes may be blocked on this one.
    """
    import time

    deadline = time.monotonic() + patience
    for process in processes:
        while process.is_alive() and (left := deadline - time.monotonic()) > 0:
            if meanwhile is not None:
                meanwhile()
            process.join(min(left, _JOIN_SECONDS))
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join(patience)


def refuse_in_child(owner: int) -> None:
    """Raises RuntimeError in a child that was forked from the process that began an iterator.

    It would take batches away that the parent waits for.
    """
    if os.getpid() != owner:
        raise RuntimeError(
            f"this iterator belongs to process {owner}, from which this one was forked: iterate "
            "the loader anew here, with iter(loader), which starts workers of its own"
        )


@contextlib.contextmanager
def named_death(workers: Iterable[Any]) -> Iterator[None]:
    """Turns the error of a batch that cannot be fetched from a dead worker into that of its death.

    ``workers`` are processes of multiprocessing. The text is torch's.

    A process that is killed closes its connections before its parent is told that it has ended, so
    that torch, which looks for dead workers at once, may find none.
    """
    from multiprocessing import connection

    try:
        yield
    except (ConnectionError, EOFError) as error:
        ended = connection.wait([worker.sentinel for worker in workers], _DYING_SECONDS)
        if not ended:
            raise
        pids = ", ".join(str(worker.pid) for worker in workers if worker.sentinel in ended)
        text = f"DataLoader worker (pid(s) {pids}) exited unexpectedly"
        raise RuntimeError(text) from error


def describe_exit(exitcode: int | None) -> str:
    """Returns how a process ended, as text."""
    if exitcode is None:
        return "is running"
    if exitcode < 0:
        with contextlib.suppress(ValueError):
            return f"is killed by signal: {signal.strsignal(-exitcode)}"
    return f"exited unexpectedly with exit code {exitcode}"


def exit_with_parent(parent: int) -> None:
    """Ends this process soon after the training process has, even while user code runs.

    ``parent`` is the training process's pid; 0 where this process's parent is a fork server.
    """
    import multiprocessing
    import time

    training = multiprocessing.parent_process()

    def is_alive() -> bool:
        if parent:
            return os.getppid() == parent
        return training is None or training.is_alive()

    def watch() -> None:
        while is_alive():
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, name="fusionloader-orphan-watch", daemon=True).start()

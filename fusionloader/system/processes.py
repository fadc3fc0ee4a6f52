"""Starting worker processes, by multiprocessing's methods or as a bare interpreter."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

from fusionloader.system import training_signals
from fusionloader.system.shm import forks

_JOIN_SECONDS = 0.05
_START_SECONDS = 5.0  # that a process takes at most to start, but where something is wrong
_DYING_SECONDS = 5.0  # between the end of a process's connections and its own


class Process(Protocol):
    """A worker process as the manager uses it; ``multiprocessing.Process`` is one."""

    @property
    def pid(self) -> int | None:
        """Process id."""

    @property
    def exitcode(self) -> int | None:
        """Exit code, minus the signal's number, ``None`` while it runs or if it is not known."""

    def is_alive(self) -> bool:
        """Whether it runs."""

    def join(self, timeout: float | None = None) -> None:
        """Waits until it has ended, at most ``timeout`` seconds."""

    def terminate(self) -> None:
        """Sends SIGTERM."""

    def kill(self) -> None:
        """Sends SIGKILL."""


def _status_was_taken(pid: int) -> bool:
    """Whether a child of this process has ended and something else has waited for it.

    That is a ``waitpid(-1)`` of the user's program, or the kernel where SIGCHLD is ignored.
    """
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


class _Signalled:
    """Sends signals only while the process runs: its number may be another one's afterwards."""

    _process: Any

    def is_alive(self) -> bool:
        """Whether it runs."""
        raise NotImplementedError

    def terminate(self) -> None:
        """Sends SIGTERM, if it runs."""
        if self.is_alive():
            self._process.terminate()

    def kill(self) -> None:
        """Sends SIGKILL, if it runs."""
        if self.is_alive():
            self._process.kill()


class Child(_Signalled):
    """A process of multiprocessing whose end is noticed even if something else waits for it.

    ``multiprocessing`` takes such a process for a running one. What is not here is the process's.
    """

    def __init__(self, process: Any, is_forked: bool) -> None:
        """``process`` is to be a child of this process, which a fork server's are not."""
        self._process, self._is_forked = process, is_forked
        self._is_taken = False

    def start(self) -> None:
        """Starts it.

        Raises:
            BlockingIOError: there may be no more processes; the text says which limits to raise.
        """
        with _limit_named():
            self._start()

    def _start(self) -> None:
        # What multiprocessing starts by itself to spawn a process would never let them through.
        if not self._is_forked:
            self._process.start()
            return
        with training_signals.held_back(), forks.of_worker():
            self._process.start()

    @property
    def daemon(self) -> bool:
        """Whether it ends with this process."""
        return bool(self._process.daemon)

    @daemon.setter
    def daemon(self, daemonic: bool) -> None:
        self._process.daemon = daemonic

    @property
    def exitcode(self) -> int | None:
        """Exit code, minus the signal's number, ``None`` while it runs or if it is not known."""
        code: int | None = self._process.exitcode
        return code

    def is_alive(self) -> bool:
        """Whether it runs."""
        if self._is_taken or not self._process.is_alive():
            return False
        self._is_taken = _status_was_taken(self._process.pid)
        return not self._is_taken

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)


@contextlib.contextmanager
def _limit_named() -> Iterator[None]:
    try:
        yield
    except BlockingIOError as error:
        raise BlockingIOError(
            error.errno,
            "no process can be started for a worker: as many processes and threads run as the user "
            "or the container may have. Raise that limit (ulimit -u 4096, docker run "
            "--pids-limit=4096), or lower num_workers",
        ) from error


class BareProcess(_Signalled):
    """A fresh interpreter that runs ``module.main(argument)`` and imports nothing else.

    Unlike multiprocessing's spawn it neither imports the training script nor loads torch.
    """

    _process: Any

    def __init__(
        self,
        module: str,
        argument: object,
        fds: tuple[int, ...],
        apart: bool = False,
        cpus: tuple[int, ...] = (),
    ) -> None:
        """``argument`` is pickled; ``fds`` are open in the process under the same numbers.

        With ``apart`` it has a session of its own, gets no signals of this process's group, and
        does not end with this process.
        With ``cpus`` it runs on these only.
        """
        package = str(Path(__file__).parents[2])
        path = [package, *(entry for entry in sys.path if entry != package)]
        watch = f"from fusionloader._native import exit_with; exit_with({os.getpid()})\n"
        code = (
            f"import sys; sys.path[:] = {path!r}; import pickle\n"
            "from fusionloader.system.training_signals import leave; leave()\n"
            f"{'' if apart else watch}from {module} import main\n"
            "main(pickle.load(sys.stdin.buffer))"
        )
        if cpus:
            bind = f"import os\ntry:\n os.sched_setaffinity(0, {cpus!r})\nexcept OSError: pass\n"
            code = bind + code
        pickled = pickle.dumps(argument, protocol=pickle.HIGHEST_PROTOCOL)
        self._process = None
        self._is_taken = False
        try:
            with _forking.lock, _limit_named():
                self._process = subprocess.Popen(
                    [sys.executable, "-S", "-E", "-s", "-c", code],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL if apart else None,
                    pass_fds=fds,
                    start_new_session=apart,
                )
            # Not under the lock: a process that is stopped reads no more than a pipe holds. What
            # other threads start meanwhile may keep this end open, but nobody waits for it to be
            # closed.
            with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
                pipe.write(pickled)
        except BaseException:
            if self._process is not None:  # it would wait for its argument for ever
                self._process.kill()
                with contextlib.suppress(OSError):
                    self._process.stdin.close()
                self._process.wait()
            raise

    @property
    def pid(self) -> int | None:
        """Process id."""
        pid: int | None = self._process.pid
        return pid

    @property
    def exitcode(self) -> int | None:
        """Exit code, minus the signal's number, ``None`` while it runs or if it is not known."""
        return None if self.is_alive() or self._is_taken else self._process.returncode

    def is_alive(self) -> bool:
        """Whether it runs."""
        if self._process.returncode is None:
            # First: of a process whose status was taken, poll() says that it ended with 0.
            self._is_taken = self._is_taken or _status_was_taken(self._process.pid)
        return not self._is_taken and self._process.poll() is None

    def join(self, timeout: float | None = None) -> None:
        """Waits until it has ended, at most ``timeout`` seconds."""
        if self.is_alive():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)


def start(
    context: Any, target: Callable[..., None], *args: object, cpus: tuple[int, ...] = ()
) -> Process:
    """Starts ``target(*args)`` in a daemonic process of a multiprocessing context.

    With ``cpus`` it runs on these only.
    """
    method = context.get_start_method()
    process = context.Process(target=_run_on, args=(parent_of(method), cpus, target, *args))
    process.daemon = True
    watched_process = watched(process, method)
    try:
        with _forking.lock:
            _check_descriptors()
            watched_process.start()
    except BaseException:
        if process.pid is not None:  # nobody would know of it
            process.kill()
        raise
    return watched_process  # type: ignore[no-any-return]


def _check_descriptors() -> None:
    """Raises OSError as multiprocessing does, which leaves a pipe open if the next finds none."""
    # Two pipes' ends. An epoll closes itself when it is dropped, whatever is raised meanwhile.
    _ = [select.epoll() for _ in range(4)]


def watched(process: Any, method: str) -> Any:
    """Returns a process of multiprocessing that is to be started, as a ``Child`` where it is one.

    ``method`` is the start method of its context.
    """
    is_child = sys.platform == "linux" and method != "forkserver"
    return Child(process, method == "fork") if is_child else process


def _run_on(parent: int, cpus: tuple[int, ...], target: Callable[..., None], *args: object) -> None:
    global _initial_affinity
    training_signals.leave()
    exit_with_parent(parent)
    if cpus:
        _initial_affinity = os.sched_getaffinity(0)
        with contextlib.suppress(OSError):  # the container may have lost them since
            os.sched_setaffinity(0, cpus)
    target(*args)


class ForkLock:
    """A lock that forks wait for, of which a forked child has a new one.

    An exception that comes in a hook of a fork ends the hook alone. So what a hook has taken is
    seen by the lock, and not by what the hook has noted, and it is given back twice.

    Attributes:
        lock: to be had in a ``with`` block, between whose lock and block nothing comes.
    """

    def __init__(self, seconds: float) -> None:
        """Forks wait ``seconds`` at most: others have hooks, for which its owner may wait."""
        self.lock = threading.RLock()
        self._seconds, self._of_thread = seconds, threading.local()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._take, after_in_parent=self._give_back, after_in_child=self._renew
            )
            os.register_at_fork(after_in_parent=self._give_back)

    def _is_owned(self) -> bool:
        return bool(self.lock._is_owned())  # type: ignore[attr-defined]

    def _take(self) -> None:
        self._of_thread.is_taken = not self._is_owned()
        if self._of_thread.is_taken:
            self.lock.acquire(timeout=self._seconds)

    def _give_back(self) -> None:
        if getattr(self._of_thread, "is_taken", False) and self._is_owned():
            self.lock.release()
        self._of_thread.is_taken = False

    def _renew(self) -> None:
        self.lock = threading.RLock()  # another thread may have had it


_starting = threading.RLock()
# Shorter, and the last that is taken: who starts one process may hold locks that a thread waits for
# which starts a loader.
_forking = ForkLock(_START_SECONDS)


def starting() -> threading.RLock:
    """Returns the lock that a thread has while it starts a loader's processes.

    A process that is forked while another thread imports a module waits for that module for ever.
    To start a loader imports modules, and forks. By itself each process is started under another
    lock: one that is forked meanwhile would keep the ends of its pipes, on whose closing its
    starter waits. A fork of user code waits for that lock, too.
    """
    return _starting


def _renew_starting() -> None:
    global _starting
    _starting = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_starting)


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


class OneThread:
    """A block that one thread at a time is in, of the process that made it.

    Two threads may take batches from one iterator, as from a queue: each batch is one thread's.
    """

    def __init__(self) -> None:
        self._owner, self._lock = os.getpid(), threading.RLock()

    def __enter__(self) -> None:
        refuse_in_child(self._owner)  # where nobody would release the lock of a forked thread
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


def describe_exit(exitcode: int | None) -> str:
    """Returns how a process that has ended did so, as text."""
    if exitcode is None:
        return "has ended in a way that is not known: its exit status was taken by waitpid(-1)"
    if exitcode < 0:
        with contextlib.suppress(ValueError):
            return f"is killed by signal: {signal.strsignal(-exitcode)}"
    return f"exited unexpectedly with exit code {exitcode}"


def exit_with_parent(parent: int) -> None:
    """Ends this process soon after the training process has ended, whatever runs in it.

    ``parent`` is the training process's pid; 0 where this process's parent is a fork server.
    """
    from fusionloader import _native

    _native.exit_with(parent, -1 if parent else _end_of_training())


def _end_of_training() -> int:
    """Returns a descriptor that becomes readable when the fork server's client has ended."""
    import multiprocessing

    training = multiprocessing.parent_process()
    assert training is not None and training.pid is not None
    with contextlib.suppress(OSError, AttributeError):  # too many files, an old kernel
        pidfd = os.pidfd_open(training.pid)
        if training.is_alive():  # so it is not the next process with that pid
            return pidfd
    # Children that training forks hold the other end of this pipe, too.
    return training.sentinel


def is_stopped(pid: int) -> bool:
    """Whether a signal, or a debugger, has stopped a process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False

"""Starts worker processes, by multiprocessing's methods or as bare interpreters, and ends them."""

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
from multiprocessing import spawn
from pathlib import Path
from typing import Any, Protocol

from fusionloader.system import training_signals
from fusionloader.system.finalizers import ExitFinalizer

_JOIN_SECONDS = 0.05
_START_SECONDS = 5.0  # longest time to start a process, unless something is wrong
_EXIT_SECONDS = 5.0  # longest wait at exit for threads that begin to iterate loaders
_NO_SITE = ["-S", "-E", "-s"]  # Python's flags
_DYING_SECONDS = 5.0  # longest time from the end of a process's connections to its own end


class Process(Protocol):
    """The part of ``multiprocessing.Process`` that managers use."""

    @property
    def pid(self) -> int | None: ...

    @property
    def exitcode(self) -> int | None:
        """Exit code, or minus the signal's number; ``None`` while it runs or if it is unknown."""

    def is_alive(self) -> bool: ...

    def join(self, timeout: float | None = None) -> None: ...

    def terminate(self) -> None: ...

    def kill(self) -> None: ...


def _status_was_taken(pid: int) -> bool:
    """Whether a child of this process has ended, and other code has taken its exit status.

    The user's program does so with ``waitpid(-1)``, and the kernel if SIGCHLD is ignored.
    """
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


class _Signalled:
    """Sends signals only while the process runs, because its pid may be reused afterwards."""

    _process: Any

    def is_alive(self) -> bool:
        raise NotImplementedError

    def terminate(self) -> None:
        if self.is_alive():
            self._process.terminate()

    def kill(self) -> None:
        if self.is_alive():
            self._process.kill()


class Child(_Signalled):
    """A process of multiprocessing whose end is noticed even if other code has waited for it.

    ``multiprocessing`` takes such a process for a running one. Other attributes are the process's.
    """

    def __init__(self, process: Any, is_forked: bool) -> None:
        """``process`` must become a child of this process, not of a fork server."""
        self._process, self._is_forked = process, is_forked
        self._is_taken = False

    def start(self) -> None:
        """Starts the process.

        Raises:
            BlockingIOError: a limit of processes is reached; the text says which limits to raise.
        """
        with _limit_named():
            self._start()

    def _start(self) -> None:
        # Only around a fork: spawn also starts multiprocessing's resource tracker, which would keep
        # these signals blocked for its whole life.
        if not self._is_forked:
            self._process.start()
            return
        with training_signals.held_back():
            self._process.start()

    @property
    def daemon(self) -> bool:
        return bool(self._process.daemon)

    @daemon.setter
    def daemon(self, daemonic: bool) -> None:
        self._process.daemon = daemonic

    @property
    def exitcode(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def is_alive(self) -> bool:
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
    """A new interpreter that runs ``module.main(argument)`` and imports nothing else.

    Unlike multiprocessing's spawn, it imports neither the training script nor torch.
    """

    _process: Any

    def __init__(
        self,
        module: str,
        argument: object,
        fds: tuple[int, ...],
        apart: bool = False,
        cpus: tuple[int, ...] = (),
        site: bool = False,
    ) -> None:
        """Starts the process.

        Args:
            module: name of the module.
            argument: argument of ``main``, which is pickled.
            fds: descriptors that are open in the process, with the same numbers.
            apart: whether it has its own session, so that it does not get the signals of this
                process's group, and does not end with this process.
            cpus: CPUs that it may run on, empty for all.
            site: whether it imports ``site``, as Python does; for packages such as Ray, which start
                interpreters with the same flags.
        """
        # Without it, a script that is no module runs again in each process that it starts.
        spawn._check_not_importing_main()  # type: ignore[attr-defined]
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
                    [spawn.get_executable(), *([] if site else _NO_SITE), "-c", code],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL if apart else None,
                    pass_fds=fds,
                    start_new_session=apart,
                )
            # Not under the lock: this would block if the process is stopped and the pipe full.
            # Processes that other threads start now may inherit this end of the pipe, which does no
            # harm: unpickling does not wait for the end of the stream.
            with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
                pipe.write(pickled)
        except BaseException:
            if self._process is not None:  # it would wait for its argument forever
                self._process.kill()
                with contextlib.suppress(OSError):
                    self._process.stdin.close()
                self._process.wait()
            raise

    @property
    def pid(self) -> int | None:
        pid: int | None = self._process.pid
        return pid

    @property
    def exitcode(self) -> int | None:
        return None if self.is_alive() or self._is_taken else self._process.returncode

    def is_alive(self) -> bool:
        if self._process.returncode is None:
            # Before poll(), which reports exit code 0 for a process whose status was taken.
            self._is_taken = self._is_taken or _status_was_taken(self._process.pid)
        return not self._is_taken and self._process.poll() is None

    def join(self, timeout: float | None = None) -> None:
        if self.is_alive():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)


def start(
    context: Any, target: Callable[..., None], *args: object, cpus: tuple[int, ...] = ()
) -> Process:
    """Starts ``target(*args)`` in a daemonic process of a multiprocessing context.

    ``cpus`` are the CPUs that it may run on, empty for all.
    """
    method = context.get_start_method()
    process = context.Process(target=_run_on, args=(find_watched_pid(method), cpus, target, *args))
    process.daemon = True
    watched_process = watched(process, method)
    try:
        with _forking.lock:
            _check_descriptors()
            watched_process.start()
    except BaseException:
        if process.pid is not None:  # it has started, and no caller would end it
            process.kill()
        raise
    return watched_process  # type: ignore[no-any-return]


def _check_descriptors() -> None:
    """Raises OSError if too few descriptors are left for multiprocessing's two pipes.

    Without this check, multiprocessing leaks the first pipe if the second cannot be made.
    """
    # Four ends. An epoll object closes its descriptor when it is freed, even after an exception.
    _ = [select.epoll() for _ in range(4)]


def watched(process: Any, method: str) -> Any:
    """Returns a process that was not started yet, as a ``Child`` if it will be one.

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
        with contextlib.suppress(OSError):  # the container's CPUs may have changed
            os.sched_setaffinity(0, cpus)
    target(*args)


class ForkLock:
    """A lock that forks wait for. A forked child gets a new one.

    Python ignores an exception in a fork hook, which ends only the hook. So ``_give_back`` asks the
    lock itself whether the hook has taken it, and it is registered twice, in case an exception ends
    the first call.

    Attributes:
        lock: the lock, for use in a ``with`` statement, where no exception can come between
            acquiring it and the block.
    """

    def __init__(self, seconds: float) -> None:
        """Forks wait at most ``seconds``, since the owner may wait for other code's fork hooks."""
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
        self.lock = threading.RLock()  # a thread that does not exist here may own the old one


_starting = threading.RLock()
# Held for a shorter time, and always acquired last: a thread that starts one process may hold locks
# that another thread, which starts a loader, waits for.
_forking = ForkLock(_START_SECONDS)


def starting() -> threading.RLock:
    """Returns the lock that a thread holds while it starts a loader's processes.

    A child that is forked while another thread imports a module waits for that module forever, and
    starting a loader both imports modules and forks. Each process is started under a second lock,
    ``_forking``: a process forked meanwhile would inherit the ends of its pipes, for whose closing
    the starter waits. Forks of user code wait for that lock too.
    """
    return _starting


def _renew_starting() -> None:
    global _starting
    _starting = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_starting)


def _wait_for_starts() -> None:
    if _starting.acquire(timeout=_EXIT_SECONDS):
        _starting.release()


# At exit the oldest one is the last, after which no other thread is about to begin an iterator.
# Before Python 3.14, a thread in a call of torch aborts the process when Python ends all threads
# that want the GIL.
ExitFinalizer(_forking, _wait_for_starts)


def find_watched_pid(method: str) -> int:
    """Returns the pid whose end also ends workers; 0 if a fork server starts them."""
    return 0 if method == "forkserver" else os.getpid()


_initial_affinity: set[int] | None = None  # CPUs of this process before it was bound to some


def restore_affinity() -> None:
    """Undoes the binding to CPUs that this process was started with."""
    if _initial_affinity is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, _initial_affinity)


def end(
    processes: list[Process], patience: float, meanwhile: Callable[[], None] | None = None
) -> None:
    """Waits ``patience`` seconds for processes to end, then kills them.

    ``meanwhile`` is called repeatedly, because the processes may wait for this one.
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
    """Raises RuntimeError in a child of ``owner``, the process that began an iterator.

    The child would take batches that the parent waits for.
    """
    if os.getpid() != owner:
        raise RuntimeError(
            f"this iterator belongs to process {owner}, from which this one was forked: iterate "
            "the loader anew here, with iter(loader), which starts workers of its own"
        )


@contextlib.contextmanager
def named_death(workers: Iterable[Any]) -> Iterator[None]:
    """Replaces a connection error by torch's error for dead workers, if one of ``workers`` died.

    A process that is killed closes its connections before its parent can see that it has ended.
    Torch looks for dead workers at once, and may find none, so this waits a while for them.
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


def renewed_in_children(lock: threading.RLock) -> threading.RLock:
    """Returns ``lock``, which is free in a forked child even if another thread has it here."""
    if hasattr(os, "register_at_fork"):
        reinit: Callable[[], None] = lock._at_fork_reinit  # type: ignore[attr-defined]
        is_owned: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined]
        os.register_at_fork(after_in_child=lambda: None if is_owned() else reinit())
    return lock


def describe_exit(exitcode: int | None) -> str:
    if exitcode is None:
        return "has ended in a way that is not known: its exit status was taken by waitpid(-1)"
    if exitcode < 0:
        with contextlib.suppress(ValueError):
            return f"is killed by signal: {signal.strsignal(-exitcode)}"
    return f"exited unexpectedly with exit code {exitcode}"


def exit_with_parent(parent: int) -> None:
    """Makes this process end soon after the training process, whatever code runs in it.

    ``parent`` is the training process's pid; 0 if this process's parent is a fork server.
    """
    from fusionloader import _native

    _native.exit_with(parent, -1 if parent else _end_of_training())


def _end_of_training() -> int:
    """Returns a descriptor that becomes readable when the fork server's client has ended."""
    import multiprocessing

    training = multiprocessing.parent_process()
    assert training is not None and training.pid is not None
    with contextlib.suppress(ProcessLookupError):
        pidfd = open_pidfd(training.pid)
        # A pidfd may be of a later process with this pid.
        if pidfd >= 0 and training.is_alive():
            return pidfd
    # Less exact: children that training forks hold the other end of this pipe too.
    return training.sentinel


def open_pidfd(pid: int) -> int:
    """Returns a pidfd; -1 where there is none, as in some builds of Python.

    Raises:
        ProcessLookupError: there is no such process.
    """
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        raise
    except (OSError, AttributeError):
        return -1


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal or a debugger."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False

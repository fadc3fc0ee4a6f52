"""Python scripts as processes of their own that need not import torch first.

A process that has imported it, and does nothing else, forks for each script: most of what a script
of ten lines costs is that import. What runs then is as if Python had been started with it: its own
session, environment, arguments, ``__main__`` and end. Nothing of FusionLoader is imported before.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO

import psutil

from support.waiting import PATIENCE

_SECONDS_TO_ABORT = 10
_MOST_BYTES = 1 << 20  # of a request: arguments and environment


class Script:
    """A script that runs: what tests use of ``subprocess.Popen``."""

    stdin: IO[str]
    stdout: IO[str]

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = threading.Event()

    def ended(self, returncode: int) -> None:
        self.returncode = returncode
        self._ended.set()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float = PATIENCE) -> int:
        if not self._ended.wait(timeout):
            self._abort()
            raise AssertionError(f"process {self.pid} does not end")
        assert self.returncode is not None
        return self.returncode

    def _abort(self) -> None:
        """Has the script and its descendants write the stacks of their threads, and end."""
        with contextlib.suppress(psutil.NoSuchProcess):
            script = psutil.Process(self.pid)
            for process in [*script.children(recursive=True), script]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGABRT)
        self._ended.wait(_SECONDS_TO_ABORT)

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):  # it may end meanwhile
            if self.returncode is None:
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(script: Path, *arguments: str, path: list[str], **environment: str) -> Script:
    """Starts a script.

    Args:
        script: its file.
        arguments: its arguments.
        path: folders to import from, as in ``PYTHONPATH``.
        environment: what differs from this process's.
    """
    whole = {**os.environ, **environment}
    return _starter().start([str(script), *arguments], path, whole, os.getcwd())


def completed(
    *arguments: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs ``python *arguments`` to its end, as ``subprocess.run`` does with captured text.

    Args:
        arguments: a script's file, or ``-c`` and code, or ``-m`` and a module; and its arguments.
        cwd: the folder to run in; this process's unless given.
        env: the whole environment, of which ``PYTHONPATH`` is obeyed; this process's unless given.
    """
    whole = dict(os.environ if env is None else env)
    path = [folder for folder in whole.get("PYTHONPATH", "").split(os.pathsep) if folder]
    command = [str(argument) for argument in arguments]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as complaints:
        files = (output.fileno(), complaints.fileno())
        process = _starter().start(command, path, whole, str(cwd or Path.cwd()), files)
        try:
            returncode = process.wait()
        except AssertionError as error:
            complaints.seek(0)
            raise AssertionError(f"{error}:\n{complaints.read()}") from error
        finally:
            process.kill()
        texts = []
        for file in (output, complaints):
            file.seek(0)
            texts.append(file.read())
    return subprocess.CompletedProcess(command, returncode, *texts)


def end_of(code: str, folder: Path, *arguments: str) -> tuple[int, str]:
    """Runs code to its end, with this process's paths; returns its status and what it complained.

    ``folder`` is for the script and its standard error.
    """
    script, complaints = folder / "script.py", folder / "stderr.txt"
    redirected = f"import os; os.dup2(os.open({str(complaints)!r}, os.O_WRONLY | os.O_CREAT), 2)"
    script.write_text(f"{redirected}\n{code}")
    process = start(script, *arguments, path=[path for path in sys.path if path])
    return process.wait(), complaints.read_text()


@cache
def _starter() -> Starter:
    return Starter()


class Starter:
    """This end of the process that forks, whose number is ``pid``."""

    def __init__(self, before: Sequence[str] = ()) -> None:
        """``before`` begins the command of the process, as ``unshare --mount`` does."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        tests = str(Path(__file__).parents[1])
        process = subprocess.Popen(
            [*before, sys.executable, "-m", "support.warm_start", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": tests},
        )
        theirs.close()
        self._process = process  # ends with this process, when the socket closes
        self.pid = process.pid
        self._scripts: dict[int, Script] = {}
        self._one_at_a_time = threading.Lock()
        self._begun = threading.Condition()
        self._newest: Script | None = None
        threading.Thread(target=self._listen, name="scripts", daemon=True).start()

    def start(
        self,
        command: list[str],
        path: list[str],
        environment: dict[str, str],
        cwd: str,
        files: Sequence[int] = (),
    ) -> Script:
        """Starts a script; ``files`` are for what it says and complains, if not a pipe."""
        request = {"command": command, "path": path, "environment": environment, "cwd": cwd}
        their_stdin, stdin = os.pipe()
        stdout, their_stdout = os.pipe()
        with self._one_at_a_time, self._begun:
            self._newest = None
            message = json.dumps(request).encode()
            socket.send_fds(self._socket, [message], [their_stdin, *(files or [their_stdout])])
            os.close(their_stdin), os.close(their_stdout)
            assert self._begun.wait_for(lambda: self._newest, PATIENCE), "no script is started"
            assert self._newest is not None
            made = self._newest
        made.stdin, made.stdout = os.fdopen(stdin, "w"), os.fdopen(stdout)
        return made

    def _listen(self) -> None:
        while event := self._socket.recv(_MOST_BYTES):
            told = json.loads(event)
            with self._begun:
                if "returncode" in told:
                    self._scripts.pop(told["pid"]).ended(told["returncode"])
                else:  # it may have ended before the thread that waits for it runs again
                    self._newest = self._scripts[told["pid"]] = Script(told["pid"])
                    self._begun.notify_all()


def serve(fd: int) -> None:
    """Forks for each request, and tells what becomes of the scripts."""
    requests = socket.socket(fileno=fd)
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    running: dict[int, int] = {}  # process ids by descriptor
    while True:
        for ready, _ in poll.poll():
            if ready != fd:
                pid = running.pop(ready)
                poll.unregister(ready)
                os.close(ready)
                returncode = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                requests.send(json.dumps({"pid": pid, "returncode": returncode}).encode())
                continue
            message, fds, *_ = socket.recv_fds(requests, _MOST_BYTES, 3)
            if not message:
                return
            pid = os.fork()
            if pid == 0:
                requests.close()
                for descriptor in running:
                    os.close(descriptor)
                run(fds, **json.loads(message))
                return
            for descriptor in fds:
                os.close(descriptor)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = pid
            poll.register(pidfd, select.POLLIN)
            requests.send(json.dumps({"pid": pid}).encode())


def run(
    fds: list[int], command: list[str], path: list[str], environment: dict[str, str], cwd: str
) -> None:
    """Becomes the script."""
    os.setsid()
    faulthandler.enable()
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
        os.close(fd)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment, PYTHONPATH=os.pathsep.join(path))
    if "OMP_NUM_THREADS" in environment:  # which is read when torch is imported
        torch.set_num_threads(int(environment["OMP_NUM_THREADS"]))
    if command[0] == "-m":
        sys.argv[:] = command[1:]
        sys.path[:0] = [cwd, *path]
        sys.modules["__main__"] = types.ModuleType("__main__")
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    if command[0] == "-c":
        sys.argv[:] = ["-c", *command[2:]]
        sys.path[:0] = ["", *path]
        text, name = command[1], "<string>"
    else:
        sys.argv[:] = command
        name = main.__file__ = os.path.abspath(command[0])
        sys.path[:0] = [str(Path(name).parent), *path]
        text = Path(name).read_text()
    exec(compile(text, name, "exec"), main.__dict__)


if __name__ == "__main__":
    import gc

    import torch
    import torchvision.datasets
    import torchvision.transforms  # noqa: F401

    # Or a script's end would take a second, for the garbage among what has been imported.
    gc.collect()
    gc.freeze()
    serve(int(sys.argv[1]))

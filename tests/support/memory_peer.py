"""The lending process's end of ``memory_child``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from multiprocessing import Pipe
from types import TracebackType
from typing import Any

from fusionloader.system.gpu_memory import LedgerHandle

_PATIENCE = 60.0


class Peer:
    """A borrower in a process of its own; it ends with the block.

    ``peer.borrow(...)`` is done over there: it returns or raises what came of it.
    """

    def __init__(self, ledger_handle: LedgerHandle, device: int = 0, **environment: str) -> None:
        self._connection, theirs = Pipe()
        descriptors = (ledger_handle.fd, theirs.fileno())
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.memory_child"]
            + [str(number) for number in (*descriptors, os.getpid(), device)],
            pass_fds=descriptors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))} | environment,
        )
        ledger_handle.close()
        theirs.close()
        try:
            self.answer()
        except BaseException:
            self.end()
            raise

    def tell(self, do: str, *positional: Any, **named: Any) -> None:
        """Gives a command without waiting for the answer."""
        self._connection.send((do, positional, named))

    def answer(self) -> Any:
        """Returns the answer to a command that was told.

        Raises:
            Exception: what went wrong over there.
        """
        if not self._connection.poll(_PATIENCE):
            raise RuntimeError(f"no answer from the borrower within {_PATIENCE:.0f} s")
        try:
            answer = self._connection.recv()
        except (EOFError, ConnectionError):
            raise RuntimeError(f"the borrower ended with {self.process.wait()}") from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return partial(self._ask, name)

    def _ask(self, do: str, *positional: Any, **named: Any) -> Any:
        self.tell(do, *positional, **named)
        return self.answer()

    # What a manager wants of a worker process.

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """Sends SIGKILL."""
        self.process.kill()

    def join(self, timeout: float | None = None) -> None:
        """Waits until it has ended."""
        self.process.wait(timeout)

    def end(self) -> None:
        """Kills it."""
        self.kill()
        self.join()
        self._connection.close()

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._connection.close()
        if error is not None:
            self.kill()
        try:
            self.join(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            self.join()

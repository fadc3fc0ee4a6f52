"""The lending process's end of ``memory_child``."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from fusionloader.system.gpu_memory import LedgerHandle

_TESTS = Path(__file__).parents[1]
_PATIENCE = 60.0


class Peer:
    """A borrower in a process of its own; it ends with the block."""

    def __init__(self, ledger_handle: LedgerHandle, device: int = 0) -> None:
        paths = [str(_TESTS), str(_TESTS.parent), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.memory_child"]
            + [str(number) for number in (ledger_handle.fd, os.getpid(), device)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=[ledger_handle.fd],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        )
        ledger_handle.close()
        try:
            self.pid = self.answer()["pid"]
        except BaseException:
            self.kill()
            raise

    def tell(self, do: str, **arguments: Any) -> None:
        """Gives a command without waiting for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        """Gives a command; returns the answer.

        Raises:
            RuntimeError: what went wrong over there.
        """
        self.tell(do, **arguments)
        return self.answer()

    def answer(self) -> dict[str, Any]:
        """Returns the answer to a command that was told."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], _PATIENCE)[0]:
            raise RuntimeError(f"no answer from the borrower within {_PATIENCE:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the borrower ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    # What a manager wants of a worker process.

    def kill(self) -> None:
        """Sends SIGKILL."""
        self._process.kill()

    def join(self, timeout: float | None = None) -> None:
        """Waits until it has ended."""
        self._process.wait(timeout)

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        if error is not None:
            self.kill()
        try:
            self.join(_PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            self.join()

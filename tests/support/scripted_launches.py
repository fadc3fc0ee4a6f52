"""Launches that a test describes, run by the GPU worker's own ``LaunchMemory``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from fusionloader._native import cuda
from fusionloader.system.gpu_memory import Borrower, Mapping
from fusionloader.transforms.executors.device.launch_memory import LaunchMemory

WAITING = 0x3A17
_PATIENCE = 60


class ScriptedPool:
    """Own memory suffices for ``most_own`` samples, borrowed memory for ``most_borrowed``.

    Launches in its own one after a wish that was not met are ``"alone"``.
    """

    def __init__(self, most_own: int, most_borrowed: int) -> None:
        self.most = {"own": most_own, "alone": most_own, "borrowed": most_borrowed}
        self.at = ""
        self.blocks = 0
        self.trims = 0

    @contextmanager
    def _in(self, memory: str) -> Iterator[None]:
        self.at = memory
        yield
        self.at = ""

    def own(self, nothing_to_borrow: bool = False) -> Any:
        return self._in("alone" if nothing_to_borrow else "own")

    def begin(self, blocks: Sequence[Mapping]) -> None:
        self.blocks += len(blocks)

    def borrowed(self) -> Any:
        return self._in("borrowed")

    def end(self) -> None:
        self.blocks = 0

    def trim(self) -> None:
        self.trims += 1


class Launches:
    """A ``LaunchMemory`` and what became of its launches: where, and of how many samples."""

    def __init__(self, borrower: Borrower, most_own: int, most_borrowed: int) -> None:
        self._borrower = borrower
        self._pool = ScriptedPool(most_own, most_borrowed)
        self._memory = LaunchMemory(
            borrower, self._pool, lambda: None, trims=False, give_up_seconds=0
        )
        self._wait_at: int | None = None
        self._done: list[tuple[str, int]] = []

    def run(self, samples: int, wait_at: int | None = None) -> dict[str, Any]:
        """Launches samples; at that part it waits until training asks its memory back."""
        self._wait_at, self._done = wait_at, []
        try:
            results: Any = self._memory.run(self._launch, [None] * samples)  # type: ignore[list-item]
        except MemoryError as error:
            results = str(error)
        return {"results": results, "launches": self._done, "blocks": self._pool.blocks}

    def _launch(self, samples: Sequence[Any]) -> list[str | None]:
        if len(samples) > self._pool.most[self._pool.at]:
            raise RuntimeError("CUDA out of memory")
        if len(self._done) == self._wait_at:
            block = self._borrower.mappings[0]
            cuda.fill(block.device, block.address, WAITING, 1)
            while not self._borrower.revoked:
                self._borrower.wait_for_change(_PATIENCE)
        self._done.append((self._pool.at, len(samples)))
        return [None] * len(samples)

    def rest(self) -> dict[str, Any]:
        """There is nothing to do."""
        self._memory.rest()
        return {"blocks": self._pool.blocks, "trims": self._pool.trims}

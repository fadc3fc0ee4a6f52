"""Lending to one worker process: its ledger, and whether memory can be shared with it at all."""

from __future__ import annotations

import threading
from contextlib import suppress

from fusionloader.gpu_memory import (
    Lender,
    LendingStats,
    MemorySharingError,
    NotReturnedError,
    probe,
)

_LOOKING_SECONDS = 0.02


class LendingSession:
    """A ledger for one worker. Whether it can open our memory is found out beside training.

    The worker answers when it has started, which takes it seconds. Until then the ledger is the
    thread's that waits for it.

    Attributes:
        lender: our end of the ledger.
        probed: what finding out has lent, which is not for the worker's use.
        proven: whether the worker has opened a block of ours.
        refused: why it cannot, in words, once that is known.
    """

    def __init__(self, device: int) -> None:
        self.lender = Lender()
        self.probed: LendingStats = self.lender.stats()
        self.proven = False
        self.refused: str | None = None
        self._device = device
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._users = 2  # whoever made this, and the thread; the last one closes
        name = "fusionloader-memory-probe"
        threading.Thread(target=self._find_out, name=name, daemon=True).start()

    def _find_out(self) -> None:
        try:
            self._probe()
        finally:
            self._leave()

    def _probe(self) -> None:
        try:
            while not self.lender.borrowers:
                if self._ended.wait(_LOOKING_SECONDS):
                    return
            refused = probe(self.lender, self._device)
        except MemorySharingError as error:
            refused = str(error)
        self.probed = self.lender.stats()
        if self._ended.is_set():
            return
        self.refused = refused
        self.proven = refused is None

    def end(self) -> None:
        """The worker has ended, and what was lent to it is back."""
        self._ended.set()
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users > 0:
                return
        with suppress(NotReturnedError):  # with a process that is stuck in the kernel
            self.lender.close(when_overdue="quarantine")

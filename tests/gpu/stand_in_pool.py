"""The GPU worker's memory where there is no device: what its launches allocate is made up.

The worker process imports this. Own memory never suffices; a launch in borrowed memory writes all
over it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from fusionloader import _native
from fusionloader.system.gpu_memory import Mapping

SCRIBBLE = 0xABCDABCD


@dataclass
class StandInPool:
    """See ``launch_memory.TorchPool``.

    Args:
        folder: for marks, by which a test sees what the worker did.
        fate: of processes that borrow: each ``"works"``, the first one ``"dies"`` at its first
            launch, each ``"loses"`` its device then, or each ``"keeps"`` what it has borrowed.
    """

    folder: str
    fate: str = "works"

    def __post_init__(self) -> None:
        self._blocks: list[Mapping] = []

    def own(self, nothing_to_borrow: bool = False) -> NoReturn:
        raise MemoryError("the worker's own memory does not suffice")

    def begin(self, blocks: Sequence[Mapping]) -> None:
        self._blocks += blocks

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        for block in self._blocks:
            _native.cuda.fill(block.device, block.address, SCRIBBLE, block.nbytes // 4)
        if self.fate == "dies" and self._is_first():
            os._exit(1)
        if self.fate == "loses":
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        yield
        for block in self._blocks:
            word = _native.cuda.read(block.device, block.address + block.nbytes - 4, 4)
            if int.from_bytes(word, "little") != SCRIBBLE:
                raise RuntimeError("another process wrote into borrowed memory")
        with open(Path(self.folder, "launched"), "a") as file:
            file.write("x")

    def end(self) -> None:
        while self.fate == "keeps":
            time.sleep(1)
        self._blocks.clear()

    def trim(self) -> None:
        """Nothing is cached."""

    def _is_first(self) -> bool:
        try:
            Path(self.folder, "first").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

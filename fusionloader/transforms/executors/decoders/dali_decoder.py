"""DALI as a decoder."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial

from fusionloader.transforms.executors.dali.head import DaliHead
from fusionloader.transforms.executors.decoders.interface import DecodeCommand, Decoded


class DaliDecoder:
    """Decodes windows into memory of DALI, by a prebuilt pipeline for each group in flight.

    A pipeline that prefetches would need its inputs ahead.
    """

    def __init__(
        self, threads: int = 1, hw_decoder_load: float = 1.0, fancy_upsampling: bool = True
    ) -> None:
        """Arguments are those of ``DaliHead``."""
        self._threads, self._load, self._fancy = threads, hw_decoder_load, fancy_upsampling
        self._busy: deque[tuple[DaliHead, Sequence[DecodeCommand]]] = deque()

    def start(self, device: int | None, capacity: int) -> None:
        self._make_head = partial(
            DaliHead,
            *(device, capacity, self._threads),
            hw_decoder_load=self._load,
            fancy_upsampling=self._fancy,
        )
        self._idle = [self._make_head()]

    def submit(self, commands: Sequence[DecodeCommand]) -> None:
        head = self._idle.pop() if self._idle else self._make_head()
        files = [command.encoded for command in commands]
        head.begin(files, [command.window for command in commands])
        self._busy.append((head, commands))

    def finished(self, seconds: float) -> Sequence[Decoded]:
        """Returns the oldest group, and waits for it as long as it takes."""
        if not self._busy:
            return ()
        head, commands = self._busy.popleft()
        self._idle.append(head)
        return [
            Decoded(command.ticket, each.image, each.reason)
            for command, each in zip(commands, head.finish(), strict=True)
        ]

    def close(self) -> None:
        self._busy.clear()
        self._idle.clear()

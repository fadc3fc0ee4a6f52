"""DALI as a decoder."""

from __future__ import annotations

from collections.abc import Sequence

from fusionloader.transforms.executors.dali.head import DaliHead
from fusionloader.transforms.executors.decoders.interface import DecodeCommand, Decoded


class DaliDecoder:
    """Decodes windows by a prebuilt pipeline, into memory of DALI.

    ``submit`` waits for the pixels: a pipeline that prefetches would need its inputs ahead.
    """

    def __init__(
        self, threads: int = 1, hw_decoder_load: float = 1.0, fancy_upsampling: bool = True
    ) -> None:
        """Arguments are those of ``DaliHead``."""
        self._threads, self._load, self._fancy = threads, hw_decoder_load, fancy_upsampling
        self._done: list[Decoded] = []

    def start(self, device: int | None, capacity: int) -> None:
        self._head = DaliHead(
            *(device, capacity, self._threads),
            hw_decoder_load=self._load,
            fancy_upsampling=self._fancy,
        )

    def submit(self, commands: Sequence[DecodeCommand]) -> None:
        files = [command.encoded for command in commands]
        made = self._head.run(files, [command.window for command in commands])
        self._done += [
            Decoded(command.ticket, each.image, each.reason)
            for command, each in zip(commands, made, strict=True)
        ]

    def finished(self, seconds: float) -> Sequence[Decoded]:
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        del self._head

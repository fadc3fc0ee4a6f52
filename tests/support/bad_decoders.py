"""Decoders that break the rules, and one that does not: in a module, so that workers find them."""

from __future__ import annotations

import io
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from fusionloader import DecodeCommand, Decoded


class PillowDecoder:
    """Decodes at once, in its only thread; ``flag`` is a file whose presence changes what it does.

    Without the flag it is a good decoder, so that the worker comes up.
    """

    def __init__(self, flag: Path | None = None) -> None:
        self.flag = flag

    def start(self, device: int | None, capacity: int) -> None:
        assert device is None
        self.capacity, self.done = capacity, deque[Decoded]()

    @property
    def is_bad(self) -> bool:
        return self.flag is not None and self.flag.exists()

    def submit(self, commands: Sequence[DecodeCommand]) -> None:
        self.done += [self.decoded(command) for command in commands]

    def decoded(self, command: DecodeCommand) -> Decoded:
        out = command.buffer()
        out.copy_(torch.from_numpy(pixels(command)))
        return Decoded(command.ticket, out)

    def finished(self, seconds: float) -> Sequence[Decoded]:
        done, self.done = list(self.done), deque()
        return done

    def close(self) -> None:
        pass


def pixels(command: DecodeCommand) -> np.ndarray:
    x, y, width, height = command.window
    image = Image.open(io.BytesIO(command.encoded)).convert("RGB")
    image = image.crop((x, y, x + width, y + height))
    if image.size != (command.width, command.height):
        filter = Image.Resampling[command.filter.upper()]
        image = image.resize((command.width, command.height), filter)
    flips = slice(None, None, -1 if command.vflip else 1), slice(None, None, -command.hflip or 1)
    return np.asarray(image)[flips].copy()


class Raises(PillowDecoder):
    def submit(self, commands: Sequence[DecodeCommand]) -> None:
        if self.is_bad:
            raise OSError("the card\nhas burnt")
        super().submit(commands)


class RaisesAtStart(PillowDecoder):
    def start(self, device: int | None, capacity: int) -> None:
        raise OSError("no such card")


class RaisesWhenAsked(PillowDecoder):
    def finished(self, seconds: float) -> Sequence[Decoded]:
        if self.is_bad:
            raise ValueError("lost its queue")
        return super().finished(seconds)


class WrongShape(PillowDecoder):
    def decoded(self, command: DecodeCommand) -> Decoded:
        found = super().decoded(command)
        return Decoded(found.ticket, found.image[:-1]) if self.is_bad else found


class WrongType(PillowDecoder):
    def decoded(self, command: DecodeCommand) -> Decoded:
        found = super().decoded(command)
        return Decoded(found.ticket, found.image.float()) if self.is_bad else found


class NotContiguous(PillowDecoder):
    def decoded(self, command: DecodeCommand) -> Decoded:
        planes = torch.from_numpy(pixels(command)).permute(2, 0, 1).contiguous()
        return (
            Decoded(command.ticket, planes.permute(1, 2, 0))
            if self.is_bad
            else super().decoded(command)
        )


class NoImage(PillowDecoder):
    def decoded(self, command: DecodeCommand) -> Decoded:
        found = super().decoded(command)
        return Decoded(found.ticket, "pixels") if self.is_bad else found


class Twice(PillowDecoder):
    def submit(self, commands: Sequence[DecodeCommand]) -> None:
        super().submit(commands)
        if self.is_bad:
            self.done.append(self.done[-1])


class NeverGiven(PillowDecoder):
    def submit(self, commands: Sequence[DecodeCommand]) -> None:
        super().submit(commands)
        if self.is_bad:
            self.done.append(Decoded(1 << 40, None, "?"))


class NoResult(PillowDecoder):
    def finished(self, seconds: float) -> Sequence[Decoded]:
        found = super().finished(seconds)
        return [("pixels",)] if self.is_bad else found  # type: ignore[list-item]


class NeverAnswers(PillowDecoder):
    def finished(self, seconds: float) -> Sequence[Decoded]:
        return () if self.is_bad else super().finished(seconds)


class Hangs(PillowDecoder):
    def finished(self, seconds: float) -> Sequence[Decoded]:
        while self.is_bad:
            time.sleep(0.01)
        return super().finished(seconds)


class Refuses(PillowDecoder):
    """Refuses every second image."""

    def decoded(self, command: DecodeCommand) -> Decoded:
        if command.ticket % 2:
            return Decoded(command.ticket, None, "odd")
        return super().decoded(command)


class NotPickled(PillowDecoder):
    def __init__(self) -> None:
        super().__init__()
        self.handle = open(os.devnull)  # noqa: SIM115


class Exits(PillowDecoder):
    def submit(self, commands: Sequence[DecodeCommand]) -> None:
        if self.is_bad:
            sys.exit(4)
        super().submit(commands)

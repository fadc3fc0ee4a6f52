"""A format of Pillow whose files command the worker that opens them: to wait, or to end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from PIL import Image

from support.waiting import wait_until

SIGNATURE = b"COMMAND:"
_SIDE = 40


def accepts(prefix: bytes) -> bool:
    return prefix[: len(SIGNATURE)] == SIGNATURE


def opened(file, filename: str = "") -> Image.Image:
    command, _, argument = file.read()[len(SIGNATURE) :].decode().partition(":")
    if command == "end":
        os.kill(os.getpid(), signal.SIGKILL)
    begun, go_on = Path(f"{argument}-begun"), Path(argument)
    begun.touch()
    wait_until(go_on.exists)
    return Image.new("RGB", (_SIDE, _SIDE), (7, 8, 9))


def register() -> None:
    Image.register_open("COMMAND", opened, accepts)


def unregister() -> None:
    Image.OPEN.pop("COMMAND", None)
    if "COMMAND" in Image.ID:
        Image.ID.remove("COMMAND")


def ends_its_worker() -> bytes:
    return SIGNATURE + b"end:"


class Gate:
    """An image that is being prepared until the gate is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.image = SIGNATURE + f"wait:{path}".encode()

    def wait_until_begun(self) -> None:
        wait_until(Path(f"{self._path}-begun").exists)

    def open(self) -> None:
        self._path.touch()

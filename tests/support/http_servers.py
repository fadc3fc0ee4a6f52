"""Server scripts as processes, and clients that ask them at the same time."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx
import numpy as np
import psutil
import torch
from PIL import Image

from support.images import photo
from support.waiting import PATIENCE, gone, wait_until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
CLIENTS = 5
Ask = Callable[[httpx.Client, bytes], httpx.Response]


def free_port() -> int:
    """A port that nobody listens at: the system chooses it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def served(
    command: list[str], ready: str, log: Path, outlived_by: str = "", **environment: str
) -> Iterator[psutil.Process]:
    """A server's process; ends it by SIGTERM, and sees that none that it began is left.

    Args:
        command: its command.
        ready: a URL that answers with status 200 once the server is up.
        log: where its output goes.
        outlived_by: in the command of what may outlive it for a while, and is killed here.
        environment: what differs from this process's.
    """
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,
            env={**os.environ, "PYTHONPATH": path, **environment},
            start_new_session=True,
        )
    server = psutil.Process(process.pid)
    begun: set[psutil.Process] = set()
    try:
        wait_until(lambda: process.poll() is not None or answers(ready), "it does not answer")
        assert process.poll() is None, log.read_text()[-3000:]
        yield server
        begun.update(server.children(recursive=True))
        own = [each for each in begun if not (outlived_by and outlived_by in command_of(each))]
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
        wait_until(lambda: all(gone(each.pid) for each in own), "processes are left")
    finally:
        for each in begun | set(everything_below(process)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.kill()
        process.wait()


def command_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


def everything_below(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(process.pid).children(recursive=True)
    return []


def answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(url, timeout=PATIENCE).status_code == 200
    return False


def script(name: str, port: int) -> list[str]:
    return [sys.executable, str(EXAMPLES / name), "--port", str(port)]


def photographs() -> list[bytes]:
    """A JPEG of another size for each client."""
    rng = np.random.default_rng(3)
    found = []
    for number in range(CLIENTS):
        file = io.BytesIO()
        photo(rng, 300 + 40 * number, 330 - 10 * number).save(file, "JPEG", quality=90)
        found.append(file.getvalue())
    return found


def ask_at_once(ask: Ask, images: list[bytes]) -> list[httpx.Response]:
    """Sends each image by a client of its own, all at the same time; answers in their order."""
    together = Barrier(len(images))

    def one(image: bytes) -> httpx.Response:
        with httpx.Client(timeout=PATIENCE) as client:
            together.wait()
            return ask(client, image)

    with ThreadPoolExecutor(len(images)) as clients:
        return list(clients.map(one, images))


def expected_scores(image: bytes) -> torch.Tensor:
    """What torchvision and the examples' model make of an image, without a server."""
    from served_model import Classifier, evaluation_transform

    with Image.open(io.BytesIO(image)) as opened:
        pixels = evaluation_transform()(opened.convert("RGB"))
    return Classifier()(pixels[None])[0]


def check_scores(scores: list[list[Any]], images: list[bytes]) -> None:
    """Checks that every client got the scores of its own image.

    Matrix products of batches of other sizes add in another order: hence the last digits.
    """
    expected = torch.stack([expected_scores(image) for image in images])
    found = torch.tensor(scores)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    distances = torch.cdist(expected, expected) + torch.eye(len(images))
    assert distances.min() > 0.01  # so nobody's answer passes for another's

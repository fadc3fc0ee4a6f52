"""An HTTP server of byte ranges that answers as late as object storage does, in its own process."""

from __future__ import annotations

import asyncio
import multiprocessing
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Lateness:
    """How long requests take before their first byte.

    Attributes:
        usual: seconds of a round trip.
        late: seconds of a late one.
        late_share: of requests that are late.
    """

    usual: float = 0.05
    late: float = 2.0
    late_share: float = 0.01


@contextmanager
def emulating(folder: Path, lateness: Lateness) -> Iterator[str]:
    """Yields the URL of a folder's files, which are served within the block."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, folder, lateness), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{here.recv()}"
    finally:
        process.kill()
        process.join()


def _serve(pipe: Connection, folder: Path, lateness: Lateness) -> None:
    from aiohttp import web

    draw = random.Random(0)

    async def answer(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            late = draw.random() < lateness.late_share
            await asyncio.sleep(lateness.late if late else lateness.usual)
        return web.FileResponse(folder / request.match_info["name"])  # by sendfile

    async def main() -> None:
        app = web.Application()
        app.router.add_get("/{name}", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=512)
        await site.start()
        pipe.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(main())

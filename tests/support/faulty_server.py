"""An HTTP server of byte ranges on the loopback device, with the faults that a test asks for."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_RANGE = re.compile(r"bytes=(\d+)-(\d+)")


@dataclass(frozen=True)
class Asked:
    """A request: ``stop`` is behind the last byte; both are ``None`` without a range."""

    method: str
    path: str
    start: int | None
    stop: int | None


@dataclass
class RangeServer:
    """Serves ``files``; what it was asked is in ``asked``.

    The faults that are left, one a GET of a range, are taken from ``faults``: a status, ``"hang"``,
    ``"cut"``, ``"reset"``, ``"whole"`` (the range is ignored), ``"endless"`` (as well, and there is
    no end), ``"longer"`` (the range has no end), ``"elsewhere"`` (another range of its length), or
    seconds of delay. ``fault_of`` is asked where there are none.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    faults: deque[int | float | str] = field(default_factory=deque)
    fault_of: Callable[[Asked], int | float | str | None] = lambda asked: None
    asked: list[Asked] = field(default_factory=list)
    port: int = 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def ranges(self) -> list[Asked]:
        """The requests for parts of files."""
        return [each for each in self.asked if each.start is not None]


@contextlib.contextmanager
def serving(files: dict[str, bytes]) -> Iterator[RangeServer]:
    """A server that runs within the block; answers that hang end with it."""
    state = RangeServer(files)
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def do_HEAD(self) -> None:
            state.asked.append(Asked("HEAD", self.path[1:], None, None))
            self._head(200, len(state.files.get(self.path[1:], b"")))

        def do_GET(self) -> None:
            data = state.files.get(self.path[1:])
            found = _RANGE.fullmatch(self.headers.get("Range", ""))
            start, stop = (int(found[1]), int(found[2]) + 1) if found else (None, None)
            asked = Asked("GET", self.path[1:], start, stop)
            state.asked.append(asked)
            fault: int | float | str | None = None
            if found:
                fault = state.faults.popleft() if state.faults else state.fault_of(asked)
            if fault == "hang":
                over.wait()
            if isinstance(fault, float):
                time.sleep(fault)
            if fault == "reset":
                self.close_connection = True
            elif isinstance(fault, int):
                self._head(fault, 0)
            elif data is None:
                self._head(404, 0)
            elif fault in ("endless", "longer"):
                self._head(200 if fault == "endless" else 206, 1 << 40)
                self.close_connection = True
                with contextlib.suppress(OSError):
                    while not over.is_set():
                        self.wfile.write(bytes(1 << 16))
            else:
                if fault == "elsewhere":
                    start, stop = start + 1, stop + 1
                part = data if fault == "whole" or start is None else data[start:stop]
                is_range = fault != "whole" and start is not None
                self._head(206 if is_range else 200, len(part), start if is_range else None)
                if fault == "cut":
                    part, self.close_connection = part[: len(part) // 2], True
                with contextlib.suppress(OSError):  # a hedged request's loser has gone
                    self.wfile.write(part)

        def _head(self, status: int, nbytes: int, start: int | None = None) -> None:
            known = self.path[1:] in state.files
            with contextlib.suppress(OSError):
                self.send_response(status if known or status >= 400 else 404)
                self.send_header("Content-Length", str(nbytes))
                if start is not None:
                    self.send_header("Content-Range", f"bytes {start}-{start + nbytes - 1}/*")
                if known:
                    self.send_header("ETag", f'"{hash(state.files[self.path[1:]]):x}"')
                self.end_headers()

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        block_on_close = False
        request_queue_size = 128

        def handle_error(self, *_: object) -> None:  # clients that are killed, or cancel
            pass

    server = Server(("127.0.0.1", 0), Handler)
    state.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield state
    finally:
        over.set()
        server.shutdown()
        thread.join()
        server.server_close()

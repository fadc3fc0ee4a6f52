"""A network between loader and worker with troubles of its own: a relay of TCP connections."""

import contextlib
import itertools
import socket
import threading
import time

_CHUNK = 1 << 14


class ShapedRelay:
    """Forwards bytes between who connects to it and a worker, as slowly as it is told.

    Attributes:
        address: where it listens.
        rate: bytes per second of each connection and direction, ``None`` for any.
        delay: seconds by which each chunk comes later.
        garbage: sent to the loader instead of the worker's next bytes, once.
        cut_after: bytes of answers after which a connection is cut.
        forwarded: bytes of answers.
        buffer: bytes that the sockets of connections from now on buffer, ``None`` for any.
    """

    def __init__(self, target, host="127.0.0.4"):
        host_of_target, _, port = target.rpartition(":")
        self._target = host_of_target, int(port)
        self._listening = socket.create_server((host, 0), backlog=128)
        self.address = f"{host}:{self._listening.getsockname()[1]}"
        self.rate = self.garbage = self.cut_after = self.buffer = None
        self.delay, self.forwarded = 0.0, 0
        self._flows = threading.Event()
        self._flows.set()
        self._ended = False
        self._lock = threading.Lock()
        self._open = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self):
        """Nothing goes through, either way, and nobody is told."""
        self._flows.clear()

    def heal(self):
        self._flows.set()

    def cut(self):
        """Ends all connections; further ones are taken."""
        with self._lock:
            ends, self._open = self._open, set()
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self):
        self._ended = True
        self._flows.set()
        self._listening.close()
        self.cut()

    def _accept(self):
        while not self._ended:
            try:
                near, _ = self._listening.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            if self.buffer is not None:
                for end, side in itertools.product(
                    (near, far), (socket.SO_RCVBUF, socket.SO_SNDBUF)
                ):
                    end.setsockopt(socket.SOL_SOCKET, side, self.buffer)
            with self._lock:
                self._open |= {near, far}
            for source, sink, is_answer in ((near, far, False), (far, near, True)):
                threading.Thread(
                    target=self._forward, args=(source, sink, is_answer), daemon=True
                ).start()

    def _forward(self, source, sink, is_answer):
        # An error: one of them has ended, and so does the other.
        with contextlib.suppress(OSError):
            while chunk := source.recv(_CHUNK if self.rate is None else 1024):
                if self.delay:
                    time.sleep(self.delay)
                if self.rate is not None:
                    time.sleep(len(chunk) / self.rate)
                self._flows.wait()
                if is_answer:
                    garbage, self.garbage = self.garbage, None
                    chunk = garbage or chunk
                sink.sendall(chunk)
                if not is_answer:
                    continue
                self.forwarded += len(chunk)
                if self.cut_after is not None and self.forwarded >= self.cut_after:
                    self.cut_after = None
                    self.cut()
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        with self._lock:
            self._open -= {source, sink}

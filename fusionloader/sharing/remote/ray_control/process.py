"""The main program of the process that talks to Ray, which a ``RayFleet`` starts."""

from __future__ import annotations

import contextlib
import os
from multiprocessing.connection import Connection

from fusionloader.sharing.remote.ray_control import cluster
from fusionloader.sharing.remote.ray_control.messages import Close, Refused, Start, Wish, Workers
from fusionloader.sharing.remote.user_code.bundle import CodeBundle

_PERIOD_SECONDS = 0.1


def main(descriptor: int) -> None:
    """Serves the training process at the other end of a socket until that ends."""
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # it has ended
        _join_and_serve(Connection(descriptor))


def _join_and_serve(control: Connection) -> None:
    training = os.getppid()
    start: Start = control.recv()
    try:
        joined = cluster.join(start)
    except ConnectionError as error:
        control.send(Refused(str(error)))
        return
    import ray

    try:
        control.send(joined)
        _serve(control, start, training)
    finally:
        ray.shutdown()


def _serve(control: Connection, start: Start, training: int) -> None:
    from fusionloader.sharing.remote.ray_control.workers import RayWorkers

    workers = RayWorkers(start)
    wish, sent = start.wish, Workers()
    # Other processes may have inherited the socket's other end, which then stays open when
    # training has ended.
    while os.getppid() == training:
        workers.step(wish)
        if workers.state() != sent:
            sent = workers.state()
            control.send(sent)
        if control.poll(_PERIOD_SECONDS):
            message = control.recv()
            if isinstance(message, Close):
                break
            if isinstance(message, CodeBundle):
                workers.bring(message)
            else:
                assert isinstance(message, Wish)
                wish = message.count
    workers.close()

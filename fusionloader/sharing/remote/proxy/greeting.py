"""How a connection to a remote worker begins: both ends agree on what is made, and of what."""

from __future__ import annotations

from typing import NamedTuple

from fusionloader.sharing.remote.protocol import (
    LEAVING,
    NO_CODE,
    OTHER_DATA,
    READY,
    SERVICE,
    SETUP,
    SETUP_CODE,
    DataMode,
    MalformedMessage,
    Ready,
    Setup,
)
from fusionloader.sharing.remote.proxy.work import RemoteWork
from fusionloader.system.fd_messages import package_version
from fusionloader.system.transport import connection
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.connection import Connection
from fusionloader.system.transport.errors import TransportError
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.messages import REFUSED, Outgoing
from fusionloader.transforms.plan.exchange import plan_to_data

_SECONDS = 5.0  # for each step
_LOAD_SECONDS = 60.0  # for a worker to import torch and load a dataset


class NotTaken(Exception):
    """A worker does not take this loader's work; the text says why, about the worker."""


class Greeted(NamedTuple):
    """A connection on which samples may be asked for."""

    connection: Connection
    mode: DataMode
    ready: Ready


def greet(address: Address, identity: Identity, work: RemoteWork, lacks_data: bool) -> Greeted:
    """Returns a connection to a worker that is ready for this work.

    With ``data="auto"`` files are sent to a worker that has not the same ones; ``lacks_data`` says
    that one has not, as is known from before.

    Raises:
        TransportError: it cannot be reached, or has another token.
        NotTaken: it is of another version, cannot run the plan, or lacks the data.
        MalformedMessage: it says something that makes no sense.
    """
    modes = _modes(work, lacks_data)
    for number, mode in enumerate(modes, 1):
        made = connection.connect(address, identity, SERVICE, _SECONDS)
        try:
            return Greeted(made, mode, _ready(made, mode, work))
        except NotTaken as error:
            made.close()
            if number == len(modes) or not str(error).startswith(OTHER_DATA):
                raise
        except BaseException:
            made.close()
            raise
    raise AssertionError("there is a way to give a worker its data")


def _modes(work: RemoteWork, lacks_data: bool) -> list[DataMode]:
    if work.code is not None:
        return [DataMode.INDICES]
    if work.image is not None:
        return [DataMode.PIXELS]
    if work.data == "shared":
        return [DataMode.PATHS]
    ships = work.data == "ship" or lacks_data
    return [DataMode.ENCODED] if ships else [DataMode.PATHS, DataMode.ENCODED]


def _ready(made: Connection, mode: DataMode, work: RemoteWork) -> Ready:
    if work.code is not None:
        made.send(Outgoing(SETUP_CODE, work.code.encode()), _SECONDS)
        return _answered(made, _LOAD_SECONDS)
    assert work.plan is not None
    setup = Setup(
        version=package_version(),
        plan=plan_to_data(work.plan),
        row_bytes=work.row_bytes,
        pillow=work.pillow,
        max_pixels=work.max_pixels,
        image=work.image,
        known_files=work.known_files if mode is DataMode.PATHS else (),
    )
    made.send(Outgoing(SETUP, setup.encode()), _SECONDS)
    return _answered(made, _SECONDS)


def _answered(made: Connection, seconds: float) -> Ready:
    answer = made.receive(seconds, seconds)
    if answer.kind == REFUSED:
        why = answer.head.decode(errors="replace")[:500]
        raise TransportError(why) if why.startswith((LEAVING, NO_CODE)) else NotTaken(why)
    if answer.kind != READY:
        raise MalformedMessage(f"answers its setup by a message of kind {answer.kind}")
    return Ready.decode(answer.head)

"""The work of remote workers for a loader, and the greeting by which a worker accepts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from fusionloader.options.remote_settings import DataPlace, Offload
from fusionloader.sharing.remote.protocol import (
    LEAVING,
    NO_CODE,
    OTHER_DATA,
    READY,
    SERVICE,
    SETUP,
    SETUP_CODE,
    CodeSetup,
    DataMode,
    MalformedMessage,
    Ready,
    RemoteFileKey,
    Setup,
)
from fusionloader.system.fd_messages import package_version
from fusionloader.system.transport import connection
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.connection import Connection
from fusionloader.system.transport.errors import TransportError
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.messages import REFUSED, Outgoing
from fusionloader.transforms.plan.exchange import plan_to_data
from fusionloader.transforms.plan.stages import Plan

_SECONDS = 5.0  # for each step
_LOAD_SECONDS = 60.0  # for a worker to import torch and load a dataset


@dataclass(frozen=True, slots=True)
class RemoteWork:
    """What remote workers make for a loader, and how results become rows of its slots.

    Attributes:
        plan: plan that workers run, which may give 8-bit levels instead of elements; ``None`` if
            they run user code.
        row_bytes: size of a result of the plan.
        convert: name and table of the elements that levels become; ``None`` if results are rows.
        pillow: version of Pillow whose pixels are reproduced.
        max_pixels: Pillow's ``MAX_IMAGE_PIXELS``: larger images are declined.
        image: (height, width, channels) of images that a dataset has in memory, else ``None``.
        known_files: a few files of the dataset.
        data: where workers find the data.
        offload: the policy that decides what workers make.
        tiny_size: samples in a tiny-batch.
        in_flight: most mini-batches that are made at a time.
        code: the user code that workers run, if any.
    """

    plan: Plan | None
    row_bytes: int
    convert: tuple[str, bytes] | None
    pillow: str
    max_pixels: int | None
    image: tuple[int, int, int] | None
    known_files: tuple[RemoteFileKey, ...]
    data: DataPlace
    offload: Offload
    tiny_size: int
    in_flight: int
    code: CodeSetup | None = None


class NotTaken(Exception):
    """A worker does not take this loader's work; the text completes "the remote worker ..."."""


class Greeted(NamedTuple):
    """A connection on which samples may be requested."""

    connection: Connection
    mode: DataMode
    ready: Ready


def greet(address: Address, identity: Identity, work: RemoteWork, lacks_data: bool) -> Greeted:
    """Returns a connection to a worker that is ready for this work.

    With ``data="auto"``, files are sent to a worker that does not have them; ``lacks_data`` says
    that this is known already.

    Raises:
        TransportError: the worker cannot be reached, has another token, is about to end, or has
            not received the user code yet.
        NotTaken: the worker has another version, cannot run the plan, or lacks the data.
        MalformedMessage: the worker's answer is malformed.
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

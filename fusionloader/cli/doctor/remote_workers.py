"""Whether remote workers can be asked, and what a request costs: a few images are sent to each."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata

import fusionloader
from fusionloader.cli.doctor.check import Check
from fusionloader.cli.doctor.decoding import photo
from fusionloader.options.remote_settings import Remote
from fusionloader.sharing.remote import protocol
from fusionloader.sharing.remote.fleet import Fleet
from fusionloader.sharing.remote.protocol import (
    DataMode,
    Declined,
    Ready,
    Rows,
    WantedSample,
    WorkRequest,
)
from fusionloader.sharing.remote.ray_fleet import RayFleet
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.connection import Connection, connect
from fusionloader.system.transport.errors import TransportError
from fusionloader.system.transport.identity import Identity, read_token
from fusionloader.system.transport.messages import REFUSED, Message, Outgoing
from fusionloader.system.transport.tokens import default_token_file
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.exchange import plan_to_data
from fusionloader.transforms.plan.stages import Plan, RandomHorizontalFlip, RandomResizedCrop

_PLAN = Plan(
    (
        RandomResizedCrop(224, 224, (0.08, 1.0), (3 / 4, 4 / 3), ("bilinear",)),
        RandomHorizontalFlip(0.5),
    ),
    None,
    224,
    224,
)
_IMAGES = 4  # of a request, as a tiny-batch has
_REQUESTS = 8
_SECONDS = 10.0  # for each answer
_RAY_SECONDS = 60.0  # until a first worker is there
_SETTLED_SECONDS = 3.0  # without another one

_REMEDIES = {
    "token": "give both machines the same token file",
    "cannot be reached": "start it there: python -m fusionloader worker --listen HOST:PORT "
    "--token-file FILE; let its port through the firewall",
    "not known here": "correct the address",
    "install the same": "pip install fusionloader=={version}",
}
_OTHER_REMEDY = "see whether it is a worker of this version that listens there"


class TrialFailed(Exception):
    """A worker does not do what it should; the text is about the worker."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of asking a worker.

    Attributes:
        ready: what it says it is.
        encrypted: whether others can read what is sent.
        overhead: seconds of a request beyond the worker's own time, the median.
        rate: images a second, asked for one request at a time.
    """

    ready: Ready
    encrypted: bool
    overhead: float
    rate: float


def checks(targets: Sequence[str], token_file: str | None) -> Iterator[Check]:
    """Yields one for each worker.

    Args:
        targets: addresses of workers; none, or ``"auto"``, for those that Ray starts.
        token_file: what the workers at these addresses were given.
    """
    if not targets or list(targets) == ["auto"]:
        yield from _of_ray()
        return
    try:
        addresses = [Address.parse(target) for target in targets]
    except ValueError as error:
        yield Check("remote workers", str(error), "fail", "correct what follows --remote")
        return
    try:
        identity = Identity.of(read_token(token_file or default_token_file()))
    except ValueError as error:
        remedy = "name the workers' with --token-file, or: python -m fusionloader worker --init"
        yield Check("token", str(error), "fail", remedy)
        return
    fleet = Fleet(addresses, identity)
    yield from _of_fleet(fleet, fleet.addresses())


def _of_ray() -> Iterator[Check]:
    """Yields one for each machine of a cluster."""
    try:
        fleet = RayFleet(Remote())
    except (ImportError, ConnectionError) as error:
        what, _, remedy = str(error).rpartition(": ")
        yield Check("Ray", what, "fail", remedy)
        return
    with contextlib.closing(fleet):
        addresses = _settled(fleet)
        if not addresses:
            remedy = "ray status: are CPUs free on other machines? Is fusionloader installed there?"
            yield Check("Ray", fleet.explain(), "fail", remedy)
            return
        yield Check("Ray", fleet.explain())
        yield from _of_fleet(fleet, list({each.host: each for each in addresses}.values()))


def _settled(fleet: Fleet) -> Sequence[Address]:
    """Returns the workers, once no more have come for a while."""
    began = changed = time.monotonic()
    found: Sequence[Address] = ()
    while True:
        now = time.monotonic()
        if len(fleet.addresses()) != len(found):
            found, changed = fleet.addresses(), now
        if now > began + _RAY_SECONDS or (found and now > changed + _SETTLED_SECONDS):
            return found
        time.sleep(0.05)


def _of_fleet(fleet: Fleet, addresses: Sequence[Address]) -> Iterator[Check]:
    for address in addresses:
        try:
            found = trial(address, fleet.identity)
        except (TransportError, TrialFailed) as error:
            remedy = next((_REMEDIES[key] for key in _REMEDIES if key in str(error)), _OTHER_REMEDY)
            remedy = remedy.format(version=fusionloader.__version__)
            yield Check(f"worker {address}", str(error), "fail", remedy)
        else:
            yield Check(f"worker {address}", _value(found))


def _value(found: Trial) -> str:
    return (
        f"{found.ready.name}: {found.rate:,.0f} images/s by one of {found.ready.cores} cores, "
        f"{found.overhead * 1e3:.2f} ms a request beside the work, "
        f"fusionloader {fusionloader.__version__}, "
        + ("encrypted" if found.encrypted else "not encrypted: loopback")
    )


def trial(address: Address, identity: Identity) -> Trial:
    """Has a worker prepare generated images, whose bytes are sent to it.

    Raises:
        TransportError: it cannot be reached, or has another token.
        TrialFailed: it refuses, or makes something else of them than this machine.
    """
    photos = [photo(label) for label in range(_IMAGES)]
    expected = _prepared_here(photos)
    with contextlib.closing(connect(address, identity, protocol.SERVICE, _SECONDS)) as connection:
        setup = protocol.Setup(
            fusionloader.__version__,
            plan_to_data(_PLAN),
            make_executor(_PLAN).result_bytes,
            pillow=metadata.version("pillow"),
        )
        ready = Ready.decode(_ask(connection, protocol.SETUP, setup.encode(), []).head)
        walls, overheads = [], []
        for number in range(_REQUESTS):
            began = time.perf_counter()
            wanted = [WantedSample(key, 0, 0, 0, len(each)) for key, each in enumerate(photos)]
            request = WorkRequest(number, 1, 0, DataMode.ENCODED, wanted)
            answer = _ask(connection, protocol.PREPARE, request.encode(), photos)
            walls.append(time.perf_counter() - began)
            if answer.kind == protocol.DECLINED:
                raise TrialFailed(f"declines images: {Declined.decode(answer.head).text}")
            if answer.body != expected:
                raise TrialFailed("makes other pixels of an image than this machine does")
            overheads.append(walls[-1] - Rows.decode(answer.head).busy_ns / 1e9)
        rate = _IMAGES / statistics.median(walls)
        return Trial(ready, connection.encrypted, statistics.median(overheads), rate)


def _ask(connection: Connection, kind: int, head: bytes, body: Sequence[bytes]) -> Message:
    connection.send(Outgoing(kind, head, body), _SECONDS)
    answer = connection.receive(_SECONDS, _SECONDS)
    if answer.kind == REFUSED:
        raise TrialFailed(answer.head.decode(errors="replace")[:500])
    return answer


def _prepared_here(photos: Sequence[bytes]) -> bytes:
    executor = make_executor(_PLAN)
    out = bytearray(executor.result_bytes * len(photos))
    for key, encoded in enumerate(photos):
        row = memoryview(out)[key * executor.result_bytes : (key + 1) * executor.result_bytes]
        executor.run(encoded, 1, 0, key, 0, row)
    return bytes(out)

"""A loader's end of a connection to a remote worker, as tests drive it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import fusionloader
from fusionloader.sharing.remote import protocol
from fusionloader.sharing.remote.protocol import (
    DataMode,
    Declined,
    Ready,
    Rows,
    Setup,
    WantedSample,
    WorkRequest,
)
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.connection import connect
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.messages import REFUSED, Message, Outgoing
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.exchange import plan_to_data
from fusionloader.transforms.plan.stages import Plan
from support.waiting import PATIENCE

TOKEN = b"a token that loaders and workers share"
PILLOW = "12.0.0"
SEED, EPOCH = 7, 3


class Refused(Exception):
    """The worker refuses; the text is its own."""


def setup_of(plan: Plan, **others: Any) -> Setup:
    """What a loader of this version asks for."""
    row_bytes = make_executor(plan, PILLOW).result_bytes
    wanted: dict[str, Any] = {
        "version": fusionloader.__version__,
        "plan": plan_to_data(plan),
        "row_bytes": row_bytes,
        "pillow": PILLOW,
    }
    return Setup(**(wanted | others))


class WorkerClient:
    """Asks a worker for samples of which the numbers are the keys."""

    def __init__(self, address: Address, token: bytes = TOKEN) -> None:
        self.connection = connect(address, Identity.of(token), protocol.SERVICE, PATIENCE)
        self._number = 0

    def ask(self, kind: int, head: bytes, *body: bytes) -> Message:
        self.connection.send(Outgoing(kind, head, body), PATIENCE)
        return self.hear()

    def hear(self) -> Message:
        message = self.connection.receive(PATIENCE, PATIENCE)
        if message.kind == REFUSED:
            raise Refused(message.head.decode())
        return message

    def set_up(self, setup: Setup) -> Ready:
        answer = self.ask(protocol.SETUP, setup.encode())
        assert answer.kind == protocol.READY
        return Ready.decode(answer.head)

    def send(
        self,
        mode: DataMode,
        data: Sequence[bytes],
        file_bytes: Sequence[int] | None = None,
        keys: Sequence[int] | None = None,
    ) -> int:
        """Asks without waiting for the answer; returns the request's number."""
        self._number += 1
        sizes = file_bytes or [0] * len(data)
        numbers = range(len(data)) if keys is None else keys
        samples = [
            WantedSample(key, 0, nbytes, 0, len(each))
            for key, nbytes, each in zip(numbers, sizes, data, strict=True)
        ]
        head = WorkRequest(self._number, SEED, EPOCH, mode, samples).encode()
        self.connection.send(Outgoing(protocol.PREPARE, head, data), PATIENCE)
        return self._number

    def prepare(self, mode: DataMode, data: Sequence[bytes], **others: Any) -> bytes | Declined:
        """Returns the results of all samples, or why there are none."""
        number = self.send(mode, data, **others)
        answer = self.hear()
        if answer.kind == protocol.DECLINED:
            declined = Declined.decode(answer.head)
            assert declined.number == number
            return declined
        assert answer.kind == protocol.ROWS
        assert Rows.decode(answer.head).number == number
        return bytes(answer.body)

    def prepare_files(self, paths: Sequence[os.PathLike[str]], **others: Any) -> bytes | Declined:
        return self.prepare(DataMode.PATHS, list(map(os.fsencode, paths)), **others)

    def close(self) -> None:
        self.connection.close()


def prepared_here(plan: Plan, encoded: Sequence[bytes]) -> bytes:
    """What the worker should answer."""
    executor = make_executor(plan, PILLOW)
    out = bytearray(executor.result_bytes * len(encoded))
    for key, each in enumerate(encoded):
        row = memoryview(out)[key * executor.result_bytes : (key + 1) * executor.result_bytes]
        executor.run(each, SEED, EPOCH, key, 0, row)
    return bytes(out)

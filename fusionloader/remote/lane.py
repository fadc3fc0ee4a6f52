"""A lane: one core of a remote worker, as a worker of the loader's queue.

How it works. A thread claims tiny-batches under the lane's number, asks for them over a connection
of its own, and writes the answers into the slots. Two requests are under way, so that the worker
has the next one when it has answered. Answers come in the order of the requests.

Why each sample comes once. A tiny-batch is written, and finished, only by who holds it. When the
answer does not come in time (ten times the 95th percentile, and no less than 2 s), when the
connection ends, or when the worker declines, the lane gives the tiny-batch back, and closes the
connection: an answer that comes later is never read. What came back is left to this machine's
workers, who report whatever is wrong with a sample.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from fusionloader import _native
from fusionloader._native import TinyBatchState
from fusionloader.plan.parts import WRITE
from fusionloader.remote.board import LaneCount, LaneState, RemoteBoard
from fusionloader.remote.gates import Gate
from fusionloader.remote.greeting import Greeted, NotTaken, greet
from fusionloader.remote.protocol import (
    DECLINED,
    MOST_BODY,
    MOST_SAMPLES,
    PREPARE,
    ROWS,
    DataMode,
    Declined,
    MalformedMessage,
    Reason,
    Rows,
)
from fusionloader.remote.sample_requests import request_for, request_for_code
from fusionloader.remote.user_code.layouts import LayoutRows
from fusionloader.remote.work import RemoteWork
from fusionloader.scheduler.offload.decision import Candidate
from fusionloader.transport.address import Address
from fusionloader.transport.connection import Connection
from fusionloader.transport.errors import TransportError
from fusionloader.transport.identity import Identity
from fusionloader.transport.messages import REFUSED, Beginning, Outgoing
from fusionloader.transport.patience import Absence, AnswerTimes

DEPTH = 2
"""Requests of a lane that are under way."""
_LEAST_SECONDS = 2.0  # that an answer is waited for
_LEAST_SECONDS_OF_CODE = 10.0  # whose samples may take a second each
_REST_SECONDS = 0.05
_MOST_DECLINED = 16  # in a row, with nothing made in between
_NO_CACHE = [0] * 7


@dataclass(frozen=True, slots=True)
class LaneQueue:
    """What all lanes of a loader share."""

    control_fd: int
    data_fd: int
    pid: int
    rows: _native.RemoteRows | LayoutRows
    work: RemoteWork
    identity: Identity
    board: RemoteBoard
    gate: Gate
    say: Callable[[str], None]

    @property
    def row_bytes(self) -> int:
        """Bytes of a sample's result."""
        rows = self.rows
        return rows.row_bytes if isinstance(rows, LayoutRows) else self.work.row_bytes


class _Lease(NamedTuple):
    """Neighbouring tiny-batches that a worker was asked for, and when."""

    claim: _native.Claim
    number: int
    samples: int
    asked: float


class Lane:
    """Runs from when it is made until ``leave()``, the end of the queue, or a final refusal.

    Attributes:
        address: of the worker.
        cores: that the worker offers; 0 until it has answered.
        was_refused: whether the worker does not take this loader's work.
    """

    def __init__(self, number: int, worker: int, address: Address, shared: LaneQueue) -> None:
        """Begins: lane ``number`` of the board is ``worker`` in the queue."""
        self.address = address
        self.cores = 0
        self.was_refused = False
        self._number = number
        self._shared = shared
        self._board = shared.board
        self._queue = _native.WorkerQueue(
            shared.control_fd, shared.data_fd, worker, takes_returned=False
        )
        self._queue.announce(shared.pid)
        self._greeted: Greeted | None = None
        self._under_way: deque[_Lease] = deque()
        least = _LEAST_SECONDS if shared.work.code is None else _LEAST_SECONDS_OF_CODE
        self._times = AnswerTimes(least)
        self._absence = Absence()
        self._asked_ever = 0
        self._declined_in_a_row = 0
        self._lacks_data = False
        self._leaving = threading.Event()
        self._enter(LaneState.AWAY)
        self._thread = threading.Thread(target=self._run, name=f"lane-{number}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def leave(self) -> None:
        """Asks for nothing more; what is under way is still waited for."""
        self._leaving.set()

    def _enter(self, state: LaneState) -> None:
        self._board.enter(self._number, str(self.address), state)

    @property
    def _ends(self) -> bool:
        return self._queue.stopping or self._leaving.is_set()

    def _run(self) -> None:
        while not self._ends:
            try:
                self._serve()
            except NotTaken as error:
                self._enter(LaneState.REFUSED)
                self.was_refused = True
                self._shared.say(f"the remote worker at {self.address} {error}; it is left alone")
                break
            except (TransportError, MalformedMessage) as error:
                seconds = self._absence.failed(time.monotonic())
                self._enter(LaneState.AWAY)
                self._shared.say(f"the remote worker at {self.address} {error}")
                self._leaving.wait(seconds)
        self._queue.idle()

    def _serve(self) -> None:
        shared = self._shared
        self._greeted = greet(self.address, shared.identity, shared.work, self._lacks_data)
        try:
            self.cores = self._greeted.ready.cores
            self._enter(LaneState.SERVING)
            while not self._queue.stopping:
                if not self._serve_some():
                    break
        finally:
            self._greeted.connection.close()
            self._give_back()

    def _serve_some(self) -> bool:
        """Asks for what there is, and takes an answer; ``False`` at the end."""
        queue = self._queue
        seen = queue.work_word
        while len(self._under_way) < DEPTH and not self._leaving.is_set():
            kind = self._shared.gate.request(queue)
            claim = None if kind is None else queue.claim_small(self._size(kind))
            if claim is None or kind is None:
                break
            self._ask(claim, kind)
        if self._under_way:
            self._take()
        elif self._leaving.is_set():
            return False
        else:
            queue.idle()
            queue.sleep(seen, _REST_SECONDS)
        return True

    def _size(self, kind: Candidate) -> int:
        """Returns how many tiny-batches to ask for at once."""
        if kind is not Candidate.MINI_BATCH:
            return 1
        samples = min(MOST_SAMPLES, MOST_BODY // max(self._shared.row_bytes, 1))
        return max(1, samples // self._shared.work.tiny_size)

    def _ask(self, claim: _native.Claim, kind: Candidate) -> None:
        assert self._greeted is not None
        self._asked_ever += 1
        number, mode = self._asked_ever, self._greeted.mode
        if kind is Candidate.SHIP and mode is DataMode.PATHS:
            mode = DataMode.ENCODED
        rows = self._shared.rows
        if isinstance(rows, LayoutRows):
            asked = request_for_code(self._queue, claim, rows, number)
        else:
            asked = request_for(claim, rows, mode, number)
        if asked is None:
            self._return(claim)
            return
        if not self._under_way:
            self._begin(claim)
        self._under_way.append(_Lease(claim, number, asked.samples, time.monotonic()))
        self._shared.gate.claimed()
        self._greeted.connection.send(
            Outgoing(PREPARE, asked.head, asked.body), self._times.deadline
        )
        self._board.add(self._number, LaneCount.BYTES_SENT, asked.nbytes)

    def _begin(self, claim: _native.Claim) -> None:
        """Notes what the worker is at, for reports and timelines."""
        self._queue.begin_span()
        self._queue.begin_sample(claim, claim.first, claim.first * claim.tiny_size)

    def _take(self) -> None:
        """Waits for the answer to the oldest request."""
        assert self._greeted is not None
        lease, deadline = self._under_way[0], self._times.deadline
        connection = self._greeted.connection
        message = connection.receive_beginning(deadline, deadline, MOST_BODY)
        seconds = time.monotonic() - lease.asked
        self._times.add(seconds)
        self._absence.answered()
        self._board.add(self._number, LaneCount.ROUND_TRIP_NS, int(seconds * 1e9))
        if message.kind == ROWS:
            self._write(lease, message, connection)
        elif message.body_bytes:
            raise MalformedMessage(f"sends a body with an answer of kind {message.kind}")
        elif message.kind == DECLINED:
            self._decline(lease, Declined.decode(message.head))
        elif message.kind == REFUSED:
            raise TransportError(message.head.decode(errors="replace")[:500])
        else:
            raise MalformedMessage(f"sends an answer of kind {message.kind}")
        self._answered()
        if self._under_way:
            self._begin(self._under_way[0].claim)

    def _answered(self) -> None:
        lease = self._under_way.popleft()
        self._shared.gate.answered(time.monotonic() - lease.asked)

    def _return(self, claim: _native.Claim) -> None:
        """Leaves tiny-batches to this machine's workers."""
        for tiny_batch in range(claim.first, claim.first + claim.count):
            self._queue.give_back(claim, tiny_batch)

    def _write(self, lease: _Lease, message: Beginning, connection: Connection) -> None:
        answer, queue, claim = Rows.decode(message.head), self._queue, lease.claim
        if answer.number != lease.number:
            raise MalformedMessage(f"answers request {answer.number}, not {lease.number}")
        if message.body_bytes != lease.samples * self._shared.row_bytes:
            raise MalformedMessage(f"sends {message.body_bytes} bytes for {lease.samples} samples")
        rows, deadline, began = self._shared.rows, self._times.deadline, time.perf_counter()
        if isinstance(rows, LayoutRows):
            connection.receive_body(rows.places(queue, claim), deadline)
        elif rows.receives_rows:
            connection.receive_body(rows.places(queue, claim), deadline)
            rows.write_targets(queue, claim)
        else:
            body = connection.receive_rest(message, deadline)
            rows.write(queue, claim, body)
        queue.add_part_seconds([0.0] * WRITE + [time.perf_counter() - began])
        queue.add_reads(answer.read_bytes, _NO_CACHE)
        queue.end_samples(claim, claim.first, lease.samples)
        queue.end_span(claim, claim.first, claim.count)
        for tiny_batch in range(claim.first, claim.first + claim.count):
            queue.finish(claim, tiny_batch, TinyBatchState.COMPLETED)
        self._declined_in_a_row = 0
        for what, count in (
            (LaneCount.SAMPLES, lease.samples),
            (LaneCount.TINY_BATCHES, claim.count),
            (LaneCount.BYTES_RECEIVED, message.body_bytes),
            (LaneCount.BUSY_NS, answer.busy_ns),
        ):
            self._board.add(self._number, what, count)

    def _decline(self, lease: _Lease, answer: Declined) -> None:
        self._return(lease.claim)
        self._board.add(self._number, LaneCount.DECLINED, lease.claim.count)
        self._declined_in_a_row += 1
        if answer.reason is Reason.DATA and self._shared.work.data == "auto":
            self._answered()
            self._lacks_data = True
            raise TransportError(f"is sent the files from now on: {answer.text}")
        if answer.reason is Reason.DATA or self._declined_in_a_row >= _MOST_DECLINED:
            self._answered()
            raise NotTaken(f"does not make these samples: {answer.text}")

    def _give_back(self) -> None:
        """Leaves what is under way to this machine's workers."""
        for lease in self._under_way:
            self._return(lease.claim)
            self._board.add(self._number, LaneCount.LOST, lease.claim.count)
            self._shared.gate.lost()
        self._under_way.clear()
        self._queue.idle()

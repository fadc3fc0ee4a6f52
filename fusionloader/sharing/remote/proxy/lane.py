"""A lane: one core of a remote worker, as a worker of the loader's queue.

Theory of operation. A thread claims tiny-batches under the lane's number, requests them over its
own connection, and writes the answers into the slots. Two requests are under way, so that the
worker has the next one when it has answered. Answers come in the order of the requests.

*Why each sample comes once.* Only the holder of a tiny-batch writes and finishes it. The lane gives
a tiny-batch back when the worker declines it, when the connection ends, and when the answer is late
(after ten times the 95th percentile of answer times; at least 2 s, or 10 s for user code; at most
30 s). When an answer is late, the connection is closed, so the answer is never read. This machine's
workers make what was given back, and report whatever is wrong with a sample. A body may take longer
by the time for its size at 1 MB/s. The proxy cuts the connection of an overdue lane, since a worker
may delay each read without letting it time out.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from fusionloader import _native
from fusionloader._native import TinyBatchState
from fusionloader.observe.statistics.lane_counts import LaneState
from fusionloader.scheduler.offload.decision import Candidate
from fusionloader.sharing.remote.protocol import (
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
from fusionloader.sharing.remote.proxy.gates import Gate
from fusionloader.sharing.remote.proxy.greeting import Greeted, NotTaken, RemoteWork, greet
from fusionloader.sharing.remote.proxy.sample_requests import request_for, request_for_code
from fusionloader.sharing.remote.remote_counters import RemoteCounters
from fusionloader.sharing.remote.user_code.layouts import LayoutRows
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.connection import Connection
from fusionloader.system.transport.errors import TransportError
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.messages import REFUSED, Beginning, Outgoing
from fusionloader.system.transport.patience import Absence, AnswerTimes
from fusionloader.transforms.plan.parts import WRITE

DEPTH = 2
"""Most requests of a lane that are under way."""
_LEAST_SECONDS = 2.0  # shortest time after which an answer is late
_MOST_SECONDS = 30.0  # longest time, however slow the last answers were
_SECONDS_MORE = 0.1  # for each tiny-batch of a request beyond the first
_LEAST_RATE = 1e6  # bytes per second of a body
_LEAST_SECONDS_OF_CODE = 10.0  # samples of user code may take a second each
_REST_SECONDS = 0.05
_MOST_DECLINED = 16  # requests in a row, before the worker is left alone
_LONGEST_TEXT = 500
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
    counters: RemoteCounters
    gate: Gate
    warn: Callable[[str], None]

    @property
    def row_bytes(self) -> int:
        """Size of a sample's result."""
        rows = self.rows
        return rows.row_bytes if isinstance(rows, LayoutRows) else self.work.row_bytes

    def request(self, queue: _native.WorkerQueue) -> Candidate | None:
        """Asks the gate, once this machine's workers have made user code's first sample."""
        rows = self.rows
        if isinstance(rows, LayoutRows) and rows.settled(queue) is None:
            return None
        return self.gate.request(queue)


class _Lease(NamedTuple):
    """A request under way: its claim of neighbouring tiny-batches, and when it was sent."""

    claim: _native.Claim
    number: int
    samples: int
    sent_at: float


class Lane:
    """Runs from its creation until ``leave()``, the end of the queue, or a final refusal.

    Attributes:
        address: address of the worker.
        cores: number of cores that the worker offers; 0 until it has answered.
        was_refused: whether the worker should be left alone for a while.
        has_failed: whether the worker has ever not answered, or the connection has ever ended.
    """

    def __init__(self, number: int, worker: int, address: Address, shared: LaneQueue) -> None:
        """Starts the lane, with ``number`` in the counters and ``worker`` in the queue."""
        self.address = address
        self.cores = 0
        self.was_refused = self.has_failed = False
        self._number = number
        self._shared = shared
        self._counters = shared.counters
        self._queue = _native.WorkerQueue(
            shared.control_fd, shared.data_fd, worker, takes_returned=False
        )
        self._queue.announce(shared.pid)
        self._greeted: Greeted | None = None
        self._under_way: deque[_Lease] = deque()
        least = _LEAST_SECONDS if shared.work.code is None else _LEAST_SECONDS_OF_CODE
        self._times = AnswerTimes(least)
        self._absence = Absence()
        self._last_number = 0
        self._declined_in_a_row = 0
        self._lacks_data = False
        self._due = math.inf
        self._state = LaneState.UNUSED
        self._leaving = threading.Event()
        self._enter(LaneState.AWAY)
        self._thread = threading.Thread(target=self._run, name=f"lane-{number}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    @property
    def is_away(self) -> bool:
        return self._state is not LaneState.SERVING

    @property
    def is_leaving(self) -> bool:
        return self._leaving.is_set()

    def leave(self) -> None:
        """Sends no more requests, and ends when those under way are answered."""
        self._leaving.set()

    def cut_if_overdue(self, now: float) -> None:
        """Ends the connection if an answer is overdue; called from another thread.

        Timeouts of reads and writes are not enough: a peer may send a byte before each expires.
        """
        greeted = self._greeted
        if greeted is not None and now > self._due:
            greeted.connection.shut()

    def _enter(self, state: LaneState) -> None:
        self._state = state
        self._counters.enter(self._number, str(self.address), state)

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
                self._shared.warn(f"the remote worker at {self.address} {error}; it is left alone")
                break
            except (TransportError, MalformedMessage) as error:
                self.has_failed = True
                seconds = self._absence.failed(time.monotonic())
                self._enter(LaneState.AWAY)
                self._shared.warn(
                    f"the remote worker at {self.address} {error}; others do its part until it "
                    "serves"
                )
                self._leaving.wait(seconds)
            except Exception:  # a bug: the worker is left alone, so that it does not repeat at once
                self.was_refused = True
                self._enter(LaneState.AWAY)
                raise
        if self._state is LaneState.SERVING:
            self._enter(LaneState.AWAY)
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
            self._due = math.inf
            self._greeted.connection.close()
            self._give_back()

    def _serve_some(self) -> bool:
        """Sends requests, and handles an answer or sleeps; returns ``False`` at the end."""
        queue = self._queue
        seen = queue.work_word
        while len(self._under_way) < DEPTH and not self._leaving.is_set():
            kind = self._shared.request(queue)
            claim = None if kind is None else queue.claim_small(self._size(kind))
            if claim is None or kind is None:
                break
            self._send(claim, kind)
        if self._under_way:
            self._take()
        elif self._leaving.is_set():
            return False
        else:
            queue.idle()
            queue.sleep(seen, _REST_SECONDS)
        return True

    def _size(self, kind: Candidate) -> int:
        """Returns how many tiny-batches to request at once."""
        if kind is not Candidate.MINI_BATCH:
            return 1
        return max(1, self._most // self._shared.work.tiny_size)

    def _send(self, claim: _native.Claim, kind: Candidate) -> None:
        assert self._greeted is not None
        self._last_number += 1
        number, mode = self._last_number, self._greeted.mode
        if kind is Candidate.SHIP and mode is DataMode.PATHS:
            mode = DataMode.ENCODED
        request, rows = None, self._shared.rows
        try:
            if isinstance(rows, LayoutRows):
                request = request_for_code(self._queue, claim, rows, number)
            else:
                request = request_for(claim, rows, mode, number, self._most)
        finally:
            if request is None:  # after an exception, too
                self._return(claim)
        if request is None:
            self._counters.add(self._number, declined=claim.count)
            return
        if not self._under_way:
            self._begin(claim)
        self._under_way.append(_Lease(claim, number, request.samples, time.monotonic()))
        self._shared.gate.claimed()
        connection = self._greeted.connection
        # The worker reads nothing while it sends an answer, and that may not fit buffers, either.
        if len(self._under_way) > 1 and request.nbytes > connection.buffered_bytes:
            self._take()
        self._expect(self._deadline, request.nbytes)
        connection.send(Outgoing(PREPARE, request.head, request.body), self._deadline)
        self._counters.add(self._number, bytes_sent=request.nbytes)

    @property
    def _most(self) -> int:
        """Most samples of a request."""
        return min(MOST_SAMPLES, MOST_BODY // max(self._shared.row_bytes, 1))

    @property
    def _deadline(self) -> float:
        return min(self._times.deadline, _MOST_SECONDS)

    def _expect(self, seconds: float, nbytes: int) -> None:
        """Sets when the lane is overdue: after ``seconds``, and the time for ``nbytes``."""
        self._due = time.monotonic() + seconds + nbytes / _LEAST_RATE

    def _begin(self, claim: _native.Claim) -> None:
        """Marks the samples that the worker makes now, for reports and timelines."""
        self._queue.begin_span()
        self._queue.begin_sample(claim, claim.first, claim.first * claim.tiny_size)

    def _take(self) -> None:
        """Waits for the answer to the oldest request, and handles it."""
        assert self._greeted is not None
        lease = self._under_way[0]
        deadline = self._deadline + _SECONDS_MORE * (lease.claim.count - 1)
        connection = self._greeted.connection
        self._expect(deadline, 0)
        message = connection.receive_beginning(deadline, deadline, MOST_BODY)
        seconds = time.monotonic() - lease.sent_at
        self._times.add(seconds)
        self._counters.add(self._number, round_trip_ns=int(seconds * 1e9))
        if message.kind == ROWS:
            self._write(lease, message, connection, int(seconds * 1e9))
        elif message.body_bytes:
            raise MalformedMessage(f"sends a body with an answer of kind {message.kind}")
        elif message.kind == DECLINED:
            self._decline(lease, Declined.decode(message.head))
        elif message.kind == REFUSED:
            raise TransportError(message.head.decode(errors="replace")[:_LONGEST_TEXT])
        else:
            raise MalformedMessage(f"sends an answer of kind {message.kind}")
        self._absence.answered()
        self._answered()
        self._due = math.inf
        if self._under_way:
            self._begin(self._under_way[0].claim)

    def _answered(self) -> None:
        lease = self._under_way.popleft()
        self._shared.gate.answered(time.monotonic() - lease.sent_at)

    def _return(self, claim: _native.Claim) -> None:
        """Gives tiny-batches back, for this machine's workers."""
        for tiny_batch in range(claim.first, claim.first + claim.count):
            self._queue.give_back(claim, tiny_batch)

    def _write(
        self, lease: _Lease, message: Beginning, connection: Connection, round_trip_ns: int
    ) -> None:
        answer, queue, claim = Rows.decode(message.head), self._queue, lease.claim
        _require_number(answer.number, lease)
        if message.body_bytes != lease.samples * self._shared.row_bytes:
            raise MalformedMessage(f"sends {message.body_bytes} bytes for {lease.samples} samples")
        rows, deadline, began = self._shared.rows, self._deadline, time.perf_counter()
        self._expect(deadline, message.body_bytes)
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
        busy_ns = min(answer.busy_ns, round_trip_ns)
        self._counters.add(
            self._number,
            samples=lease.samples,
            tiny_batches=claim.count,
            bytes_received=message.body_bytes,
            busy_ns=busy_ns,
        )

    def _decline(self, lease: _Lease, answer: Declined) -> None:
        _require_number(answer.number, lease)
        text = answer.text[:_LONGEST_TEXT]
        self._return(lease.claim)
        self._counters.add(self._number, declined=lease.claim.count)
        self._declined_in_a_row += 1
        if answer.reason is Reason.DATA and self._shared.work.data == "auto":
            self._answered()
            self._lacks_data = True
            raise TransportError(f"is sent the files from now on: {text}")
        if answer.reason is Reason.DATA or self._declined_in_a_row >= _MOST_DECLINED:
            self._answered()
            raise NotTaken(f"does not make these samples: {text}")

    def _give_back(self) -> None:
        """Gives back all that is under way, for this machine's workers."""
        for lease in self._under_way:
            self._return(lease.claim)
            self._counters.add(self._number, leases_lost=lease.claim.count)
            self._shared.gate.lost()
        self._under_way.clear()
        self._queue.idle()


def _require_number(number: int, lease: _Lease) -> None:
    if number != lease.number:
        raise MalformedMessage(f"answers request {number}, not {lease.number}")

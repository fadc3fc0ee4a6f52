"""A borrowed worker's side of sharing: attaches to the queue of another rank, and detaches."""

from __future__ import annotations

import os
import pickle

from fusionloader import _native
from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import FdMessage
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import Plan

_TIMEOUT_SECONDS = 0.5


class Assignments:
    """Attaches the native loop to the queue that the global manager assigns."""

    def __init__(
        self, loop: _native.PlanWorker, address: str, plan: Plan, executor: _native.Executor
    ) -> None:
        """``executor`` runs ``plan``, the plan of the worker's own rank."""
        self._loop = loop
        self._address = address
        self._plan = plan
        self._executor = executor
        # Kept alive here, because the native loop has only pointers to them.
        self._attached: (
            tuple[_native.WorkerQueue, _native.SharedMapping, _native.Executor] | None
        ) = None
        self._data_fd = -1

    @property
    def executor(self) -> _native.Executor:
        assert self._attached is not None
        return self._attached[2]

    def follow(self) -> None:
        """Detaches from the queue that is attached, and attaches to the assigned one, if any."""
        member = self._loop.assignment()
        self.detach()
        if member == 0:
            return
        answer = self._fetch(member)
        if answer is None or not self._attach(member, answer):
            self._loop.decline()

    def detach(self) -> None:
        """Detaches from the queue and unmaps its memory."""
        self._loop.detach()
        self._attached = None
        if self._data_fd >= 0:
            os.close(self._data_fd)
            self._data_fd = -1

    def _fetch(self, member: int) -> FdMessage | None:
        """Returns what a member sent to the global manager; ``None`` if either has ended."""
        connection = fd_messages.connect(self._address, _TIMEOUT_SECONDS)
        if connection is None:
            return None
        with connection:
            try:
                fd_messages.send(connection, FdMessage({"do": "fetch", "member": member}))
                return fd_messages.receive(connection)
            except OSError:
                return None

    def _attach(self, member: int, answer: FdMessage) -> bool:
        try:
            control, data, table = answer.fds
            self._data_fd = os.dup(data)  # slots are mapped through it when they are first claimed
            # The loop takes a guest slot before it claims; until then the number has no meaning.
            queue = _native.WorkerQueue(control, self._data_fd, 0)
            memory = _native.SharedMapping(table, 0, int(answer.fields["table_bytes"]))
            plan = pickle.loads(answer.payload)
            # Ranks share workers only where Pillow has the same settings.
            executor = self._executor
            if plan != self._plan:
                executor = make_executor(plan, max_pixels=executor.max_pixels)
        except (RuntimeError, KeyError, ValueError, OSError):
            return False
        finally:
            answer.close()
        self._attached = (queue, memory, executor)
        self._loop.attach(member, *self._attached)
        return True

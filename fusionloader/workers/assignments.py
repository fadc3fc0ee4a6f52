"""A borrowed worker's side of sharing: attaches to the queue of another rank, and detaches."""

from __future__ import annotations

import os
import pickle
from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from fusionloader import _native
from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import FdMessage
from fusionloader.transforms.executors.native import make_executor
from fusionloader.transforms.plan.stages import Plan

_TIMEOUT_SECONDS = 0.5


Attached = TypeVar("Attached")


class Assignments(ABC, Generic[Attached]):
    """Attaches a worker to the queue that the global manager assigns."""

    def __init__(self, sent: _native.PlanWorker | _native.SharedWorker, address: str) -> None:
        """``address`` is the global manager's."""
        self._sent, self._address = sent, address
        # Kept alive here, because native code has only pointers to it.
        self._attached: Attached | None = None
        self._data_fd = -1

    @abstractmethod
    def _attach(self, member: int, answer: FdMessage, data_fd: int) -> Attached:
        """Attaches the queue of ``member``, and returns what has to be kept for it.

        Slots are mapped through ``data_fd`` when they are first claimed.

        Raises:
            RuntimeError, LookupError, ValueError, OSError: it cannot be attached.
        """

    def follow(self) -> None:
        """Detaches from the queue that is attached, and attaches to the assigned one, if any."""
        member = self._sent.assignment()
        self.detach()
        if member == 0:
            return
        answer = self._fetch(member)
        if answer is None or not self._is_attached(member, answer):
            self._sent.decline()

    def detach(self) -> None:
        """Detaches from the queue and unmaps its memory."""
        self._sent.detach()
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

    def _is_attached(self, member: int, answer: FdMessage) -> bool:
        try:
            self._data_fd = os.dup(answer.fds[1])
            self._attached = self._attach(member, answer, self._data_fd)
        except (RuntimeError, LookupError, ValueError, OSError):
            return False
        finally:
            answer.close()
        return True


_Site = tuple[_native.WorkerQueue, _native.SharedMapping, _native.Executor]


class PlanAssignments(Assignments[_Site]):
    """Attaches the native loop."""

    def __init__(
        self, loop: _native.PlanWorker, address: str, plan: Plan, executor: _native.Executor
    ) -> None:
        """``executor`` runs ``plan``, the plan of the worker's own rank."""
        super().__init__(loop, address)
        self._loop, self._plan, self._executor = loop, plan, executor

    @property
    def executor(self) -> _native.Executor:
        assert self._attached is not None
        return self._attached[2]

    def _attach(self, member: int, answer: FdMessage, data_fd: int) -> _Site:
        # The loop takes a guest slot before it claims; until then the number has no meaning.
        queue = _native.WorkerQueue(answer.fds[0], data_fd, 0)
        memory = _native.SharedMapping(answer.fds[2], 0, int(answer.fields["table_bytes"]))
        plan = pickle.loads(answer.payload)
        # Ranks share workers only where Pillow has the same settings.
        executor = self._executor
        if plan != self._plan:
            executor = make_executor(plan, max_pixels=executor.max_pixels)
        self._loop.attach(member, queue, memory, executor)
        return queue, memory, executor

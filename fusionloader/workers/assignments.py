"""What a worker needs to serve another rank's queue, fetched from the global manager."""

from __future__ import annotations

import os
import pickle
from typing import Any

from fusionloader import _native
from fusionloader.executors.native import make_executor
from fusionloader.plan.stages import Plan
from fusionloader.workers import fd_messages

_PATIENCE_SECONDS = 0.5


class Assignments:
    """The worker's side of lending: attaches the native loop to the queue that it is sent to."""

    def __init__(
        self, loop: _native.PlanWorker, address: str, plan: Plan, executor: _native.Executor
    ) -> None:
        """``executor`` is that of ``plan``, the plan of the worker's own rank."""
        self._loop = loop
        self._address = address
        self._plan = plan
        self._executor = executor
        self._attached: tuple[Any, ...] = ()  # held for the native loop, which only refers to it
        self._data_fd = -1

    @property
    def executor(self) -> _native.Executor:
        """The executor of the queue that is attached."""
        executor: _native.Executor = self._attached[2]
        return executor

    def follow(self) -> None:
        """Lets go of a queue that is not needed, and attaches to the one that is wanted."""
        member = self._loop.assignment()
        self.let_go()
        if member == 0:
            return
        answer = self._ask_for(member)
        if answer is None or not self._attach(member, answer):
            self._loop.decline()

    def let_go(self) -> None:
        """Lets go of what is attached."""
        self._loop.detach()
        self._attached = ()
        if self._data_fd >= 0:
            os.close(self._data_fd)
            self._data_fd = -1

    def _ask_for(self, member: int) -> fd_messages.Message | None:
        """Returns what a member gave the global manager, ``None`` if either is gone."""
        connection = fd_messages.connect(self._address, _PATIENCE_SECONDS)
        if connection is None:
            return None
        with connection:
            try:
                fd_messages.send(connection, fd_messages.Message({"do": "fetch", "member": member}))
                return fd_messages.receive(connection)
            except OSError:
                return None

    def _attach(self, member: int, answer: fd_messages.Message) -> bool:
        try:
            control, data, table = answer.fds
            self._data_fd = os.dup(data)  # slots are mapped through it as they are met
            # The loop takes a guest slot before it claims; until then the number says nothing.
            queue = _native.WorkerQueue(control, self._data_fd, 0)
            memory = _native.SharedMapping(table, 0, int(answer.fields["table_bytes"]))
            plan = pickle.loads(answer.payload)
            executor = self._executor if plan == self._plan else make_executor(plan)
        except (RuntimeError, KeyError, ValueError, OSError):
            return False
        finally:
            answer.close()
        self._attached = (queue, memory, executor)
        self._loop.attach(member, *self._attached)
        return True

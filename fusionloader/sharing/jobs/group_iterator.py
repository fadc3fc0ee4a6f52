"""The iterator of a loader that shares its preparation with other jobs."""

from __future__ import annotations

from collections.abc import Callable

from fusionloader.engine.delivery.device_batches import DeviceDelivery
from fusionloader.engine.iterators.backend import WorkerBackend
from fusionloader.engine.iterators.loader_state import LoaderState
from fusionloader.engine.iterators.slot_iterator import SlotIterator
from fusionloader.engine.manager.in_flight import Job
from fusionloader.engine.manager.manager import Manager
from fusionloader.engine.manager.options import ManagerOptions, StartWorker
from fusionloader.options.aliases import AnyLoader, Batch
from fusionloader.options.loader_options import LoaderOptions
from fusionloader.sharing.jobs.agreement import Agreement
from fusionloader.sharing.jobs.connection import LeftGroup
from fusionloader.sharing.jobs.group_manager import GroupManager
from fusionloader.sharing.jobs.membership import GroupMembership

Agree = Callable[[LoaderOptions], Agreement]
"""Returns what has to be equal in all jobs of a group."""


class GroupIterator(SlotIterator):
    """Prepares each epoch in the group, or alone if the job is not a member of the epoch."""

    def __init__(
        self,
        loader: AnyLoader,
        options: LoaderOptions,
        state: LoaderState,
        backend: WorkerBackend,
        membership: GroupMembership,
        agree: Agree,
    ) -> None:
        self._membership: GroupMembership | None = membership
        self._agree = agree
        super().__init__(loader, options, state, backend)

    def _make_delivery(self) -> DeviceDelivery | None:
        """Returns ``None``: other jobs use the slots, too, so torch copies from host memory."""
        return None

    def _open(self) -> None:
        """Does nothing: each epoch chooses its manager."""

    def _make_manager(self, options: ManagerOptions, start: StartWorker) -> Manager:
        membership = self._membership
        if membership is None or membership.why_alone:
            return super()._make_manager(options, start)
        deferred = self._statistics.deferred
        return GroupManager(options, self._backend.layout, start, membership, deferred)

    def _enter_epoch(self) -> None:
        membership = self._membership
        if membership is not None:
            membership.begin(self._agree(self._options), self._options, self._epoch_state)
            if not membership.is_served_by(getattr(self, "_manager", None)):
                self._start_manager()

    def _forget_returned(self) -> None:
        self._notice_other_epoch()
        super()._forget_returned()

    def _notice_other_epoch(self) -> None:
        """Leaves the group if another iterator of the loader has begun an epoch."""
        if self._membership is not None and not self._membership.is_for_epoch(self._epoch_state):
            self._membership = None
        if self._membership is None and isinstance(self._manager, GroupManager):
            self._start_anew()  # at a later call, if an exception came in between

    def _batch(self, job: Job) -> tuple[bool, Batch]:
        membership = self._membership
        if job.result is None and membership is not None:
            # The connection may have ended since the batch was taken, and its slot be used again.
            if job.owner is None and not (membership.why_alone or membership.connection.is_open):
                membership.check()
            membership.delivered(job.number)
        return super()._batch(job)

    def _end_epoch(self) -> None:
        if self._membership is not None:
            self._membership.end_epoch(finished=True)
        super()._end_epoch()

    def _go_on_without_it(self, why: str) -> None:
        """Begins the rest of the epoch anew in the group, or has this job's own workers make it."""
        assert self._membership is not None
        self._take_back()
        # In one step: as long as they are here, the next call takes them for published.
        self._in_flight.jobs.clear()
        try:
            if self._membership.begin_rest(self._agree(self._options), self._options):
                self._fill()
                return
        except LeftGroup as left:
            why = str(left)
        self._membership.leave(why)
        super()._go_on_without_it(why)

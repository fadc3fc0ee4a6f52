"""Epochs of a loader: their numbers, their progress, and how one is resumed."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import torch
from torch.utils.data.dataloader import _DatasetKind

from fusionloader.data.epochs.epoch_state import EpochState, generator_state, set_generator_state
from fusionloader.data.epochs.rank_shares import find_share, resume_share
from fusionloader.data.epochs.sampling import Drawn, sampling_generator
from fusionloader.data.epochs.stateful import resting_state
from fusionloader.options.aliases import State
from fusionloader.options.loader_options import LoaderOptions

_MASK = (1 << 64) - 1


def _check_workers(options: LoaderOptions, epoch_state: EpochState) -> None:
    """Checks whether an iterable dataset's workers can go on from a state.

    Warns if the rest of the epoch may not be what is left of it.

    Raises:
        ValueError: the state is of another number of workers.
    """
    has_progress = epoch_state.delivered > 0 or any(epoch_state.worker_states())
    if not has_progress or options.dataset_kind != _DatasetKind.Iterable:
        return
    if epoch_state.num_workers != options.num_workers:
        raise ValueError(
            f"the state was saved with num_workers = {epoch_state.num_workers}, and this loader "
            f"has {options.num_workers}: each worker has its own position in an IterableDataset, "
            f"so give num_workers={epoch_state.num_workers}"
        )
    is_stateless = not any(epoch_state.worker_states())
    if is_stateless and options.num_workers > 1 and not (options.in_order or epoch_state.finished):
        warnings.warn(
            "with in_order=False, workers may deliver their batches in another order than before, "
            "and this IterableDataset has no state_dict(): the rest of the epoch may lack samples "
            "and repeat others. Give it state_dict() and load_state_dict(), or set in_order=True",
            stacklevel=4,
        )


class Epochs:
    """The epochs of one loader, across its iterators.

    Attributes:
        current: the current or last epoch; ``None`` before the first.
        completed: number of epochs that have ended.
    """

    def __init__(self) -> None:
        self.current: EpochState | None = None
        self.completed = 0
        self._next = 0
        self._loaded: EpochState | None = None
        self._resume: EpochState | None = None
        # Of the last start: what was loaded, the epoch to continue, and whether it was numbered.
        self._taken: tuple[EpochState | None, EpochState | None, bool] = (None, None, False)
        self._numbered = False
        self._sets = 0
        self._seen: tuple[object, ...] = ()
        self._at_load: tuple[object, ...] = ()

    def __reduce__(self) -> tuple[type[Epochs], tuple[()]]:
        return Epochs, ()  # a copied or pickled loader begins anew

    @property
    def resumes_within(self) -> bool:
        """Whether the next iterator continues within an epoch, as ``load_state_dict`` has set."""
        return self._loaded is not None and not self._loaded.finished

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the next epoch, or of a current one that has delivered nothing."""
        self._next = int(epoch)
        self._numbered = True
        self._sets += 1

    def base_seed(self, drawn: int) -> int:
        """Returns the base seed of the next iterator's workers: a resumed one, or ``drawn``."""
        coming = self._resume
        return drawn if coming is None or coming.base_seed is None else coming.base_seed

    def dataset_states(self) -> list[State | None] | None:
        """Returns the states of a stateful dataset at the start of the next iterator."""
        loaded = self._loaded
        if loaded is None:
            return None
        states = loaded.worker_states()
        for state in states:
            if state is not None and loaded.finished:
                state["between"] = True
        return states

    def start(self, options: LoaderOptions, base_seed: int) -> EpochState:
        """Starts a new epoch, or the one that ``load_state_dict`` restored."""
        seen = self._signs(options)
        before, loaded, resumed = self.current, self._loaded, self._resume
        taken = loaded, None if resumed is None else resumed.copy(), self._numbered
        if resumed is not None:
            current = resumed
        else:
            seed = base_seed if options.seed is None else options.seed
            state = generator_state(sampling_generator(options))
            current = EpochState(self._next, seed & _MASK, state, base_seed)
            current.num_workers = options.num_workers
            if loaded is not None:
                current.inherit(loaded)
            elif before is not None and options.persistent_workers:
                is_same = before.num_workers == current.num_workers  # else the workers are new
                current.workers = before.workers_between() if is_same else []
        if loaded is not None and (loaded.finished or not (loaded.delivered or loaded.ahead)):
            current.epoch_set = self._set_since_load(seen)
            if self._numbered:
                current.epoch = self._next
        if current.share is None or not current.share.before:
            current.share = find_share(options)
        # No call follows, so no exception can come when only a part is set.
        self._seen, self._taken, self._resume, self._loaded = seen, taken, None, None
        self.current, self._next, self._numbered = current, current.epoch + 1, False
        return current

    def restart(self) -> None:
        """Undoes ``start`` for an epoch that delivered nothing and whose number has changed."""
        if self.current is not None and self.current.finished:  # no other was started since
            return
        self._loaded, self._resume, numbered = self._taken
        if self.current is not None and not self._numbered and (numbered or self._resume is None):
            self._next, self._numbered = self.current.epoch, numbered

    def changed(self, options: LoaderOptions) -> bool:
        """Whether ``set_epoch`` was called, here or on a sampler, since the epoch started."""
        return self._signs(options) != self._seen

    def watched(self, options: LoaderOptions, batches: Iterator[Drawn]) -> Iterator[Drawn]:
        """Yields ``batches``. A sampler that counts its own passes does not call ``set_epoch``."""
        for batch in batches:
            self._seen = self._signs(options)
            yield batch
        self._seen = self._signs(options)

    def _signs(self, options: LoaderOptions) -> tuple[object, ...]:
        samplers = (options.sampler, options.batch_sampler)
        inner = options.inner_sampler
        return (self._sets, *(getattr(s, "epoch", None) for s in (*samplers, inner)))

    def _set_since_load(self, signs: tuple[object, ...]) -> int | None:
        """Returns the number that ``set_epoch`` was called with, here or on a sampler."""
        if self._numbered:
            return self._next
        pairs = zip(signs[1:], self._at_load[1:], strict=True)
        return next((now for now, then in pairs if now != then and isinstance(now, int)), None)

    def finish(self, epoch_state: EpochState) -> None:
        """Counts an epoch as completed. Further calls for the same epoch do nothing."""
        if not epoch_state.finished:
            epoch_state.finished = True
            self.completed += 1

    # ---- saving --------------------------------------------------------------------------------

    def state(self, options: LoaderOptions) -> EpochState:
        """Returns what to save: the current epoch, or the start of the next one."""
        if self._loaded is not None:
            return self._loaded
        current, resting = self.current, None
        if current is None or not current.has_drawn:
            resting = resting_state(options.index_sampler)
        if current is not None:
            current.settle()
            current = current.copy()  # another thread may go on with it, or may just have begun
            if current.has_drawn:
                resting = current.sampler
        if current is not None and not current.finished:
            if resting is not None:
                current.drawn.setdefault(current.delivered - 1, resting)
            return current
        state = generator_state(sampling_generator(options))
        coming = EpochState(self._next, 0, state, finished=True)
        coming.num_workers = options.num_workers
        coming.share = find_share(options)
        if resting is not None:
            coming.drawn[-1] = resting
        if current is not None:
            coming.live = current.live
            if options.persistent_workers:
                coming.base_seed, coming.workers = current.base_seed, current.workers
        return coming

    def resume(self, options: LoaderOptions, epoch_state: EpochState) -> None:
        """Makes the next iterator continue from ``epoch_state``."""
        _check_workers(options, epoch_state)
        if not epoch_state.finished:
            epoch_state.share = resume_share(epoch_state.share, find_share(options))
        coming = (
            self._next_epoch(options, epoch_state) if epoch_state.finished else epoch_state.copy()
        )
        # For an iterator that has been made and has delivered nothing yet.
        taken = epoch_state, None if coming is None else coming.copy(), False
        signs = self._signs(options)
        # No call follows, as in ``start``.
        self.current, self._loaded, self._resume, self._taken = None, epoch_state, coming, taken
        self._next, self._sets, self._numbered = epoch_state.epoch, self._sets + 1, False
        self._at_load = signs

    def _next_epoch(self, options: LoaderOptions, epoch_state: EpochState) -> EpochState | None:
        """Restores the generator; returns the next epoch, ``None`` if ``iter()`` draws its seed."""
        base_seed, state = epoch_state.base_seed, epoch_state.generator
        generator = sampling_generator(options)
        if generator is not None:
            set_generator_state(generator, state)
        elif state != generator_state(None) and options.generator is None and base_seed is None:
            # The draw that an iterator would have made. The user's global generator is not changed.
            own = torch.Generator()
            set_generator_state(own, state)
            drawn = torch.empty((), dtype=torch.int64, device="cpu").random_(generator=own)
            base_seed = int(drawn.item())
            state = generator_state(own)
        if base_seed is None:
            return None
        seed = base_seed if options.seed is None else options.seed
        coming = EpochState(epoch_state.epoch, seed & _MASK, state, base_seed, resumed=True)
        coming.num_workers = options.num_workers
        coming.inherit(epoch_state)
        return coming

"""Base of the batch samplers: passes, ranks and states of epochs that depend on a seed alone.

An epoch is formed as a whole when its first batch is requested. Each of its batches has a number
that does not depend on the ranks. In each step every rank takes one batch, and together they take
consecutive numbers. Therefore one number says what all ranks have taken, and any number of ranks
can continue from it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from operator import index as as_integer
from typing import Any

from torch.utils.data import Sampler

from fusionloader.data.samplers.batch_order import BatchOrder
from fusionloader.data.samplers.ranks import Ranks, find_ranks
from fusionloader.options.aliases import State

VERSION = 1


@dataclass(frozen=True, slots=True)
class SamplerPlace:
    """The position in a pass.

    Attributes:
        epoch: number of the epoch.
        position: number of batches that all ranks together have taken.
        start: number of batches that were taken before the present ranks began to share the epoch.
        ranks: number of ranks that share the epoch since ``start``.
        checksum: checksum of the epoch's order; ``None`` before it is formed.
    """

    epoch: int = 0
    position: int = 0
    start: int = 0
    ranks: int = 1
    checksum: int | None = None


class EpochSampler(Sampler[list[int]]):
    """Base of batch samplers that form an epoch from a seed and the epoch's number alone.

    Without ``set_epoch``, each pass is the next epoch. A pass begins when its first batch is
    requested.

    Attributes:
        seed: seed of all epochs.
        shuffle: whether the order is random.
        drop_last: whether to leave out smaller batches, and last batches too few for all ranks.
        num_replicas: number of ranks.
        rank: rank of this process.
        epoch: last argument of ``set_epoch``; 0 before.
    """

    # Of the class as well: a sampler that an earlier version pickled has none.
    _running: object | None = None  # the pass that is under way
    _coming: int | None = None  # the next pass's epoch, set while a pass is under way

    def __init__(
        self,
        *,
        seed: int,
        shuffle: bool,
        drop_last: bool,
        num_replicas: int | None,
        rank: int | None,
    ) -> None:
        """Takes the arguments that all samplers have.

        Raises:
            ValueError: the seed is negative, or as ``find_ranks`` does.
        """
        self.seed: int = as_integer(seed)
        if self.seed < 0:
            raise ValueError(f"seed should be a whole number from 0 on, not {seed!r}")
        self.shuffle: bool = bool(shuffle)
        self.drop_last: bool = bool(drop_last)
        self._ranks = Ranks(*find_ranks(num_replicas, rank), self.drop_last)
        self.num_replicas: int = self._ranks.count
        self.rank: int = self._ranks.rank
        self.epoch: int = 0  # not changed by passes, since loaders detect set_epoch() by it
        self._place = SamplerPlace(ranks=self.num_replicas)
        self._begun = False
        self._formed: tuple[int, BatchOrder] | None = None

    # ---- what a subclass defines ---------------------------------------------------------------

    @abstractmethod
    def form(self, epoch: int) -> BatchOrder:
        """Returns all batches of an epoch, which depend on the seed and ``epoch`` alone."""

    @property
    @abstractmethod
    def batches(self) -> int:
        """Number of batches of each epoch, over all ranks and without repeated ones."""

    @abstractmethod
    def describe(self) -> State:
        """Returns the values, by name, that must be equal in a sampler that loads a state."""

    @abstractmethod
    def explain(self) -> str:
        """Returns one line about the batches, for ``explain()``."""

    # ---- passes --------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of this rank's batches in a whole epoch."""
        return self._ranks.steps(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        place = self._place
        if self._coming is not None:
            place = SamplerPlace(self._coming, ranks=self.num_replicas)
        elif self._begun:
            place = SamplerPlace(place.epoch + 1, ranks=self.num_replicas)
        order = self._order(place.epoch)
        if place.checksum not in (None, order.checksum):
            raise ValueError(
                f"epoch {place.epoch} cannot be continued: its order is not that in which it was "
                "begun. Give the sampler the same lengths or sources, with the same version of "
                "numpy, or begin the epoch anew with set_epoch()"
            )
        this = self._running = object()
        self._begun, self._place, self._coming = True, place, None
        done = (place.position - place.start) // self.num_replicas
        try:
            for step in range(done, self._ranks.steps(len(order) - place.start)):
                taken = place.start + (step + 1) * self.num_replicas
                if self._running is this:  # a later pass or a loaded state has another place
                    self._place = replace(place, position=taken)
                yield order.batch(self._ranks.number(step, place.start, len(order)))
        finally:
            if self._running is this:
                self._running = None
                if self._coming is not None:
                    self._begin(self._coming)

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of the next pass, from 0. A pass that is under way goes on.

        The position of a loaded state is kept if it is of the same epoch.

        Raises:
            ValueError: ``epoch`` is negative.
        """
        self.epoch = _whole("epoch", epoch)
        if self._running is not None:
            self._coming = self.epoch
        elif self._begun or self._place.epoch != self.epoch:
            self._begin(self.epoch)

    def _begin(self, epoch: int) -> None:
        self._place = SamplerPlace(epoch, ranks=self.num_replicas)
        self._begun, self._coming = False, None

    def _order(self, epoch: int) -> BatchOrder:
        if self._formed is None or self._formed[0] != epoch:
            self._formed = None  # frees its memory before the next one is formed
            self._formed = epoch, self.form(epoch)
        return self._formed[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_formed": None, "_running": None}

    # ---- states --------------------------------------------------------------------------------

    def state_dict(self, delivered: int | None = None) -> State:
        """Returns the position in the pass as JSON-serialisable values, the same on all ranks.

        A loader with its own ``state_dict()`` saves this state correctly. A plain ``DataLoader``
        requests batches ahead of training, so ``delivered`` has to be given.

        Args:
            delivered: number of batches of this pass that training has received. ``None``: all
                that were requested.

        Raises:
            ValueError: the pass has yielded fewer batches.
        """
        place = self._place
        if self._begun:
            place = replace(place, checksum=self._order(place.epoch).checksum)
        if delivered is not None:
            place = self._after(place, _whole("delivered", delivered))
        return {"version": VERSION, "sampler": self._described(), **asdict(place)}

    def _after(self, place: SamplerPlace, delivered: int) -> SamplerPlace:
        given = (place.position - place.start) // self.num_replicas
        if delivered > given:
            raise ValueError(f"delivered={delivered}, and the pass has yielded {given} batches")
        return replace(place, position=place.start + delivered * self.num_replicas)

    def load_state_dict(self, state: State) -> None:
        """Makes the next pass continue from a state of this or another number of ranks.

        The present ranks share what is left of the epoch. After the last batch of an epoch nothing
        is left: the next pass is empty, and the one after it is the next epoch.

        Raises:
            ValueError: the state is of another kind of sampler; the message says what differs.
        """
        self._place = self._placed(state)
        self._begun, self._running, self._coming = False, None, None

    def _placed(self, state: State) -> SamplerPlace:
        if not isinstance(state, dict) or state.get("version") != VERSION:
            found = state.get("version") if isinstance(state, dict) else type(state).__name__
            raise ValueError(
                f"this is not a state of {type(self).__name__}.state_dict(), or one of another "
                f"version (expected version {VERSION}, found {found!r})"
            )
        missing = {"sampler", *SamplerPlace.__slots__} - state.keys()
        if missing:
            raise ValueError(
                f"the state is not whole, it lacks {', '.join(sorted(missing))}: load it as "
                "state_dict() returned it"
            )
        theirs, ours = state["sampler"], self._described()
        for name in ours.keys() | theirs.keys():
            if theirs.get(name) != ours.get(name):
                raise ValueError(
                    f"the state was saved by a sampler with {name} = {theirs.get(name)!r}, and "
                    f"this one has {ours.get(name)!r}: the remaining batches would not be the same"
                )
        place = SamplerPlace(**{name: state[name] for name in SamplerPlace.__slots__})
        if place.ranks != self.num_replicas:
            place = replace(place, start=place.position, ranks=self.num_replicas)
        return place

    def _described(self) -> State:
        common = {"kind": type(self).__name__, "seed": self.seed, "shuffle": self.shuffle}
        return {**common, "drop_last": self.drop_last, "batches": self.batches, **self.describe()}

    def merge_states(self, states: Sequence[State]) -> State:
        """Returns the state with which this rank takes its share of what is left.

        Args:
            states: states of the ranks of a job, or of any one of them, since they are equal.

        Raises:
            ValueError: the states differ in their position.
        """
        places = {self._placed(state) for state in states}
        if len(places) > 1:
            raise ValueError(
                "the ranks do not stand at the same batch: save the states of all ranks at the "
                "same step"
            )
        return states[0]

    def batches_before(self, state: State) -> Iterator[list[int]]:
        """Yields this rank's batches of the epoch before ``state``."""
        place = self._placed(state)
        order = self._order(place.epoch)
        for step in range((place.position - place.start) // self.num_replicas):
            yield order.batch(self._ranks.number(step, place.start, len(order)))


def _whole(name: str, value: int) -> int:
    found = as_integer(value)
    if found < 0:
        raise ValueError(f"{name} should be a whole number from 0 on, not {value!r}")
    return found

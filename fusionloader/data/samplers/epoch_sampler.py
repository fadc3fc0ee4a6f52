"""Batch samplers whose epoch is a function of seed and number: its passes, ranks and states.

An epoch is formed as a whole, when the first of its batches is asked for. Each of its batches has a
number that does not depend on the ranks, and in each step the ranks take as many batches as they
are. So one number says what all of them have taken, and any number of ranks can go on from there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from operator import index as as_integer
from typing import Any

from torch.utils.data import Sampler

from fusionloader.data.samplers.batch_order import BatchOrder
from fusionloader.data.samplers.ranks import Ranks
from fusionloader.options.aliases import State

VERSION = 1


@dataclass(frozen=True, slots=True)
class SamplerPlace:
    """Where a pass stands.

    Attributes:
        epoch: number of the epoch.
        position: batches of it that all ranks together have taken.
        start: of these, those that were taken before the present ranks came to share the epoch.
        ranks: number of ranks that have gone on from ``start``.
        checksum: of the epoch's order; ``None`` before it was formed.
    """

    epoch: int = 0
    position: int = 0
    start: int = 0
    ranks: int = 1
    checksum: int | None = None


class EpochSampler(Sampler[list[int]]):
    """Base of batch samplers that form an epoch from a seed and its number alone.

    Without ``set_epoch``, each pass is the epoch after that of the pass before. A pass begins when
    its first batch is asked for.

    Attributes:
        seed: of all epochs.
        shuffle: whether the order is drawn.
        drop_last: whether smaller batches, and batches too few for all ranks, are left out.
        num_replicas: number of ranks.
        rank: of this process.
        epoch: what ``set_epoch`` was last given; 0 before.
    """

    def __init__(
        self,
        *,
        seed: int,
        shuffle: bool,
        drop_last: bool,
        num_replicas: int | None,
        rank: int | None,
    ) -> None:
        """Args are those of the samplers.

        Raises:
            ValueError: the seed is negative, or the ranks are none.
        """
        self.seed: int = as_integer(seed)
        if self.seed < 0:
            raise ValueError(f"seed should be a whole number from 0 on, not {seed!r}")
        self.shuffle: bool = bool(shuffle)
        self.drop_last: bool = bool(drop_last)
        self._ranks = Ranks.of(num_replicas, rank, self.drop_last)
        self.num_replicas: int = self._ranks.count
        self.rank: int = self._ranks.rank
        self.epoch: int = 0  # loaders watch it: no pass changes it
        self._place = SamplerPlace(ranks=self.num_replicas)
        self._begun = False
        self._formed: tuple[int, BatchOrder] | None = None

    # ---- what a sampler adds -------------------------------------------------------------------

    @abstractmethod
    def form(self, epoch: int) -> BatchOrder:
        """Returns all batches of an epoch, a function of the seed and ``epoch`` alone."""

    @property
    @abstractmethod
    def batches(self) -> int:
        """How many batches each epoch has, over all ranks and without repeated ones."""

    @abstractmethod
    def describe(self) -> State:
        """Returns what a sampler must have in common with one whose state it takes, by name."""

    @abstractmethod
    def explain(self) -> str:
        """Returns a line on how batches are made."""

    # ---- passes --------------------------------------------------------------------------------

    def __len__(self) -> int:
        """The number of this rank's batches in a whole epoch."""
        return self._ranks.steps(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        place = self._place
        if self._begun:
            place = SamplerPlace(place.epoch + 1, ranks=self.num_replicas)
        order = self._order(place.epoch)
        if place.checksum not in (None, order.checksum):
            raise ValueError(
                f"epoch {place.epoch} cannot be continued: its order is not that in which it was "
                "begun. Give the sampler the same lengths or sources, with the same version of "
                "numpy, or begin the epoch anew with set_epoch()"
            )
        self._begun, self._place = True, place
        done = (place.position - place.start) // self.num_replicas
        for step in range(done, self._ranks.steps(len(order) - place.start)):
            taken = place.start + (step + 1) * self.num_replicas
            self._place = replace(place, position=taken)
            yield order.batch(self._ranks.number(step, place.start, len(order)))

    def set_epoch(self, epoch: int) -> None:
        """Makes the next pass that of epoch ``epoch``, from 0.

        After ``load_state_dict`` the place in that very epoch is kept.

        Raises:
            ValueError: it is negative.
        """
        self.epoch = _whole("epoch", epoch)
        if self._begun or self._place.epoch != self.epoch:
            self._place = SamplerPlace(self.epoch, ranks=self.num_replicas)
            self._begun = False

    def _order(self, epoch: int) -> BatchOrder:
        if self._formed is None or self._formed[0] != epoch:
            self._formed = None  # its memory goes to the next one
            self._formed = epoch, self.form(epoch)
        return self._formed[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_formed": None}

    # ---- states --------------------------------------------------------------------------------

    def state_dict(self, delivered: int | None = None) -> State:
        """Returns where the pass stands, as JSON-serialisable values, the same on all ranks.

        Loaders with ``state_dict()`` of their own save it by themselves. A plain ``DataLoader``
        asks for batches ahead of training.

        Args:
            delivered: how many batches of this pass training has had; ``None``: all that were
                asked for.

        Raises:
            ValueError: the pass has not given so many.
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
            raise ValueError(f"{delivered} batches are said to be delivered, of {given} asked for")
        return replace(place, position=place.start + delivered * self.num_replicas)

    def load_state_dict(self, state: State) -> None:
        """Makes the next pass go on from a state, of this or another number of ranks.

        What is left of the epoch is shared by the ranks that there are now. After the last batch
        of an epoch nothing is left: the next pass is empty, and the one after it the next epoch.

        Raises:
            ValueError: the state is not of such a sampler; the message says what differs.
        """
        self._place = self._placed(state)
        self._begun = False

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
        """Returns the state from which this rank shares what the ranks of ``states`` have left.

        Args:
            states: of the ranks of a job, or that of any of them, since they are the same.

        Raises:
            ValueError: they do not stand at the same batch.
        """
        places = {self._placed(state) for state in states}
        if len(places) > 1:
            raise ValueError(
                "the ranks do not stand at the same batch: save the states of all ranks at the "
                "same step"
            )
        return states[0]

    def batches_before(self, state: State) -> Iterator[list[int]]:
        """Yields what this rank took of the epoch between its start and ``state``."""
        place = self._placed(state)
        order = self._order(place.epoch)
        for step in range((place.position - place.start) // self.num_replicas):
            yield order.batch(self._ranks.number(step, place.start, len(order)))


def _whole(name: str, value: int) -> int:
    found = as_integer(value)
    if found < 0:
        raise ValueError(f"{name} should be a whole number from 0 on, not {value!r}")
    return found

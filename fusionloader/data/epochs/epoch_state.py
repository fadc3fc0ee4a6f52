"""The position in an epoch: what ``state_dict`` saves and ``load_state_dict`` restores."""

from __future__ import annotations

import base64
import copy
import functools
import pickle
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch

from fusionloader.data.epochs.rank_shares import Share
from fusionloader.options.aliases import State
from fusionloader.system.processes import renewed_in_children

VERSION = 3
# Of counting: one thread may call state_dict() while another one calls next().
_lock = renewed_in_children(threading.RLock())


class Returned(NamedTuple):
    """A mini-batch that is delivered to the user.

    Attributes:
        number: number of the mini-batch in the epoch.
        worker: number of the worker that made it; -1 where it does not matter.
        state: pickled state of that worker's dataset after the mini-batch.
    """

    number: int
    worker: int = -1
    state: bytes | None = None


@dataclass(slots=True)
class EpochState:
    """An epoch's identity and its delivered mini-batches.

    Attributes:
        epoch: number of the epoch.
        seed: 64-bit seed of the epoch's random draws.
        generator: state of the sampler's generator at the start of the epoch.
        base_seed: base seed of torch's workers.
        delivered: number of mini-batches delivered without a gap from the start.
        ahead: numbers of mini-batches delivered beyond the first gap (``in_order=False``).
        finished: whether the epoch has ended.
        resumed: whether another iterator began the epoch.
        epoch_set: number that ``set_epoch`` gave the epoch after a state without a batch of it was
            loaded; ``None`` without such a call.
        drawn: states of a stateful sampler by number of the mini-batch that they follow: those not
            delivered yet and the last delivered one; -1 for the start of the epoch.
        workers: pickled states of a stateful dataset, one per worker; ``None`` for workers that
            have delivered nothing.
        last_worker: number of the worker that made the last delivered mini-batch.
        live: returns the state of a stateful dataset in this process.
        num_workers: number of workers of the loader that saved the state.
        share: this rank's share of the epoch, by its ``DistributedSampler``.
        returned: mini-batches that are being returned and are not counted yet, by number: one for
            each thread. Setting an item is a single step, and no exception can come between it and
            the return of ``next()``.
        newest: by worker, the largest number of its delivered mini-batches. Threads that share an
            iterator may return them in another order than that of the worker's states.
    """

    epoch: int
    seed: int
    generator: bytes
    base_seed: int | None = None
    delivered: int = 0
    ahead: set[int] = field(default_factory=set)
    finished: bool = False
    resumed: bool = False
    epoch_set: int | None = field(default=None, kw_only=True)
    drawn: dict[int, State] = field(default_factory=dict)
    workers: list[bytes | None] = field(default_factory=list)
    last_worker: int = -1
    live: Callable[[], State | None] | None = None
    num_workers: int = 0
    share: Share | None = None
    returned: dict[int, Returned] = field(default_factory=dict)
    newest: dict[int, int] = field(default_factory=dict)

    def deliver(self, returned: Returned) -> None:
        self.returned[returned.number] = returned
        self.settle()

    def has(self, number: int) -> bool:
        return number < self.delivered or number in self.ahead

    def settle(self) -> None:
        """Counts ``returned`` as delivered. May be interrupted at any step and called again."""
        with _lock:
            for number, returned in [*self.returned.items()]:
                if returned[:2] == (self.delivered, -1) and not (self.ahead or self.drawn):
                    self.delivered += 1  # the common case: same result as below, at less cost
                else:
                    self._settle(returned)
                self.returned.pop(number, None)  # a signal handler may have done it

    def _settle(self, returned: Returned) -> None:
        # Each step can be repeated with the same result.
        if returned.number >= self.delivered:
            self.ahead.add(returned.number)
        if returned.worker >= 0 and returned.number >= self.newest.get(returned.worker, -1):
            self.newest[returned.worker] = returned.number
            self.last_worker = max(self.newest, key=self.newest.__getitem__)
            if returned.state is not None:
                self.workers[returned.worker] = returned.state
        while self.delivered in self.ahead:
            self.delivered += 1
        self.ahead = {number for number in self.ahead if number >= self.delivered}
        for number in list(self.drawn):  # in place, because next() may be adding one
            if number < self.delivered - 1:
                self.drawn.pop(number, None)

    def copy(self) -> EpochState:
        with _lock:
            own: State = {"ahead": set(self.ahead), "drawn": dict(self.drawn)}
            own["newest"] = dict(self.newest)
            return replace(self, workers=list(self.workers), returned=dict(self.returned), **own)

    def inherit(self, before: EpochState) -> None:
        """Takes over the states of sampler and dataset at the end of the epoch ``before``."""
        if before.sampler is not None:
            self.drawn[-1] = before.sampler
        self.workers = before.workers_between()

    def workers_between(self) -> list[bytes | None]:
        """Returns the workers' states for the epoch after this one."""
        states = [None if state is None else pickle.loads(state) for state in self.workers]
        for state in states:
            if state is not None:
                state["between"] = True
        return pickled_states(states)

    @property
    def has_drawn(self) -> bool:
        """Whether a stateful sampler may have gone on since the epoch began."""
        return self.finished or bool(self.drawn) or self.delivered > 0

    @property
    def sampler(self) -> State | None:
        """The state of a stateful sampler after the last delivered mini-batch."""
        if self.finished and self.drawn:
            return self.drawn[max(self.drawn)]
        return self.drawn.get(self.delivered - 1)

    def worker_states(self) -> list[State | None]:
        """Returns the states of a stateful dataset: one per worker, or one without workers."""
        if self.live is not None:
            state = self.live()
            return [] if state is None else [state]
        states = [None if state is None else pickle.loads(state) for state in self.workers]
        return states if any(state is not None for state in states) else []

    def to_state(self, identity: State) -> State:
        """Returns a JSON-serialisable dictionary; ``identity`` describes the loader."""
        return {
            "version": VERSION,
            "loader": identity,
            "epoch": self.epoch,
            "seed": self.seed,
            "generator": _encoded(self.generator),
            "base_seed": self.base_seed,
            "delivered": self.delivered,
            "ahead": sorted(self.ahead),
            "finished": self.finished,
            "sampler": copy.deepcopy(self.sampler),
            "workers": self.worker_states(),
            "last_worker": self.last_worker,
            "num_workers": self.num_workers,
            "ranks": None if self.share is None else self.share.to_state(),
        }

    @classmethod
    def from_state(cls, state: State, identity: State) -> EpochState:
        """Returns the epoch that ``to_state`` described.

        Raises:
            ValueError: the state is of another kind of loader; the message says what differs.
        """
        if not isinstance(state, dict) or state.get("version") != VERSION:
            found = state.get("version") if isinstance(state, dict) else None
            raise ValueError(
                "this is not a state of FusionLoader.state_dict(), or one of another version "
                f"(expected version {VERSION}, found {found!r})"
            )
        missing = cls(0, 0, b"").to_state({}).keys() - state.keys()
        if missing:
            raise ValueError(
                f"the state is not whole, it lacks {', '.join(sorted(missing))}: load it as "
                "state_dict() returned it, or begin the epoch anew"
            )
        theirs = state["loader"]
        for name, ours in identity.items():
            if theirs.get(name) != ours:
                raise ValueError(
                    f"the state was saved by a loader with {name} = {theirs.get(name)!r}, and this "
                    f"one has {ours!r}: the remaining batches would not be the same"
                    f"{_instead(name, state)}"
                )
        epoch_state = cls(
            state["epoch"],
            state["seed"],
            base64.b64decode(state["generator"]),
            state["base_seed"],
            state["delivered"],
            set(state["ahead"]),
            state["finished"],
            resumed=True,
            workers=pickled_states(state["workers"]),
            last_worker=state["last_worker"],
            num_workers=state["num_workers"],
            share=None if state["ranks"] is None else Share.from_state(state["ranks"]),
        )
        if state["sampler"] is not None:
            epoch_state.drawn[epoch_state.delivered - 1] = copy.deepcopy(state["sampler"])
        return epoch_state


def _instead(name: str, state: State) -> str:
    """Returns the remedy for a state with another number of ranks or another batch size."""
    if name == "world_size" and state["ranks"] is None and state["sampler"] is not None:
        return (
            '. load_state_dict(state, ranks="reshard") goes on if the sampler can share what is '
            "left, as those of fusionloader.data.samplers can"
        )
    if name not in ("world_size", "batch_size", "drop_last") or state["ranks"] is None:
        return ""
    return (
        '. load_state_dict(state, ranks="reshard") delivers what no rank has delivered of the '
        "epoch in other batches, each sample once"
    )


@functools.lru_cache(maxsize=4)
def _encoded(generator: bytes) -> str:
    return base64.b64encode(generator).decode()  # the same for every state of an epoch


def pickled_states(states: list[State | None]) -> list[bytes | None]:
    return [None if state is None else pickle.dumps(state) for state in states]


def for_workers(states: list[bytes | None], workers: int) -> list[bytes | None]:
    """Returns a state for each of ``workers``; another number of workers may have saved them."""
    return [states[worker % len(states)] if states else None for worker in range(workers)]


def generator_state(generator: torch.Generator | None) -> bytes:
    """Returns the state of ``generator``; ``None`` means torch's global generator."""
    chosen = torch.default_generator if generator is None else generator
    return bytes(chosen.get_state().numpy().tobytes())


def set_generator_state(generator: torch.Generator | None, state: bytes) -> None:
    chosen = torch.default_generator if generator is None else generator
    chosen.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

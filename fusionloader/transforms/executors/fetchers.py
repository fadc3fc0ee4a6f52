"""torch's fetchers of mini-batches, and the states of their datasets.

A dataset may keep a state itself, or its iterator, or both, by the ``state_dict`` and
``load_state_dict`` protocol. Whoever has both methods has a state: no class is asked for. States
are copied when they are taken, since their owners go on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeGuard

import torch

from fusionloader.options.aliases import Index, State


class Stateful(Protocol):
    """What saves and loads its state."""

    def state_dict(self) -> State:
        """Returns the state."""

    def load_state_dict(self, state: State) -> None:
        """Goes on from a state."""


def has_state(thing: object) -> TypeGuard[Stateful]:
    """Whether ``thing`` saves and loads its state."""
    return all(callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict"))


def state_of(thing: object) -> Any:
    """Returns a copy of the state of ``thing``, ``None`` if it has none."""
    return copy.deepcopy(thing.state_dict()) if has_state(thing) else None


def load_state(thing: object, state: Any) -> None:
    """Undoes ``state_of``."""
    if state is not None and has_state(thing):
        thing.load_state_dict(copy.deepcopy(state))


def fetcher_state(fetcher: Any) -> State | None:
    """Returns the state of a fetcher's dataset and of its iterator; ``None`` if they have none.

    ``dataset`` and ``iterator`` have the states; ``ended`` and ``between`` say when they were
    taken: after the worker's last mini-batch of an epoch, or before its first of the one under way.
    """
    iterator = getattr(fetcher, "dataset_iter", None)
    own = None if iterator is fetcher.dataset else state_of(fetcher.dataset)
    of_iterator = state_of(iterator)
    if own is None and of_iterator is None:
        return None
    ended = bool(getattr(fetcher, "ended", False))
    return {"dataset": own, "iterator": of_iterator, "ended": ended, "between": False}


def make_fetcher(make: Callable[[], Any], dataset: Any, state: State | None) -> Any:
    """Returns a fetcher of torch's that goes on from ``state``."""
    if state is None:
        return make()
    load_state(dataset, state["dataset"])
    fetcher = make()
    iterator = getattr(fetcher, "dataset_iter", None)
    load_state(iterator, state["iterator"])
    if state["between"]:
        return make() if iterator is not None else fetcher
    if iterator is not None:
        fetcher.ended = state["ended"]
    return fetcher


def asked_samples(indices: list[Index]) -> int:
    """Returns how many samples were asked for."""
    return len(indices) if isinstance(indices, list) else 1  # batch_size=None


def made_samples(data: Any, asked: int) -> int:
    """Returns how many samples there are in a batch of an iterable dataset.

    Fewer than ``asked`` in the last one of a worker; ``asked`` for what has no length we know.
    """
    while isinstance(data, (Mapping, Sequence)) and not isinstance(data, (str, bytes)) and data:
        data = next(iter(data.values() if isinstance(data, Mapping) else data))
    if isinstance(data, torch.Tensor) and data.dim() > 0:
        return min(len(data), asked)
    return asked

"""torch's fetchers of mini-batches, and the states of their datasets.

A dataset, its iterator or both may have a state. An object has one if it has the methods
``state_dict()`` and ``load_state_dict(state)``, whatever its class is. States are copied when they
are taken, since their owners go on.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, Protocol, TypeGuard
from weakref import WeakKeyDictionary

import torch
from torch.utils.data import Subset

from fusionloader.options.aliases import Index, State
from fusionloader.transforms.executors.global_generators import preserved_generators

_DEEPEST = 8  # nested containers in which a batch's first tensor is looked for


class Stateful(Protocol):
    """An object that saves and loads its state."""

    def state_dict(self) -> State:
        """Returns the state, which may change later."""

    def load_state_dict(self, state: State) -> None:
        """Continues from a state."""


def has_state(thing: object) -> TypeGuard[Stateful]:
    """Whether ``thing`` saves and loads its state.

    MosaicML's and LitData's datasets do not by themselves: their ``state_dict`` has arguments that
    only their own loaders know. The states of a module and of a mapping (TensorDict) are their
    data, which would be copied with every mini-batch, and not a position.
    """
    inherited = getattr(type(thing), "state_dict", None) is torch.nn.Module.state_dict
    if inherited or isinstance(thing, Mapping):
        return False
    return _takes(getattr(thing, "state_dict", None)) and _takes(
        getattr(thing, "load_state_dict", None), None
    )


def _takes(method: object, *arguments: object) -> bool:
    if not callable(method):
        return False
    if not (isinstance(method, MethodType) and isinstance(method.__func__, FunctionType)):
        return _takes_positional(method, len(arguments))
    # 15 us for each of them, and states are taken with each batch.
    known = _taking.setdefault(method.__func__, {})
    count = 1 + len(arguments)
    if count not in known:
        known[count] = _takes_positional(method.__func__, count)
    return known[count]


_taking: WeakKeyDictionary[FunctionType, dict[int, bool]] = WeakKeyDictionary()


def _takes_positional(function: Callable[..., object], count: int) -> bool:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a method in C
        return True
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def copy_state(thing: object) -> Any:
    """Returns a copy of the state of ``thing``; ``None`` if it has none."""
    return copy.deepcopy(thing.state_dict()) if has_state(thing) else None


def load_state(thing: object, state: Any) -> None:
    """Loads a copy of a state of ``copy_state`` into ``thing``."""
    if state is not None and has_state(thing):
        thing.load_state_dict(copy.deepcopy(state))


def fetcher_state(fetcher: Any) -> State | None:
    """Returns the states of a fetcher's dataset and its iterator; ``None`` if they have none.

    The keys ``dataset`` and ``iterator`` have the states. ``ended`` says that they were taken after
    the worker's last mini-batch of an epoch, ``between`` that they were taken before its first.
    """
    iterator = getattr(fetcher, "dataset_iter", None)
    dataset_state = None if iterator is fetcher.dataset else copy_state(fetcher.dataset)
    iterator_state = copy_state(iterator)
    if dataset_state is None and iterator_state is None:
        return None
    ended = bool(getattr(fetcher, "ended", False))
    return {"dataset": dataset_state, "iterator": iterator_state, "ended": ended, "between": False}


def make_fetcher(make: Callable[[], Any], dataset: Any, state: State | None) -> Any:
    """Returns a fetcher of ``make`` that continues from ``state``."""
    if state is None:
        return make()
    fetcher, iterator = _loaded(make, dataset, state)
    if iterator is None:
        return fetcher
    if not state["between"]:
        fetcher.ended = state["ended"]
        return fetcher
    # A pass may begin, and use up the loaded position, with its first sample.
    with preserved_generators():
        is_position = _has_samples(iterator)
        if inspect.isgenerator(iterator):
            with contextlib.suppress(Exception):  # of the user's code behind its last sample
                iterator.close()  # now: its `finally` may change what is loaded next
    if is_position and state["ended"]:  # that of the next pass's start
        return _loaded(make, dataset, state)[0]
    return make()


def _loaded(make: Callable[[], Any], dataset: Any, state: State) -> tuple[Any, Any]:
    load_state(dataset, state["dataset"])
    fetcher = make()
    iterator = getattr(fetcher, "dataset_iter", None)
    load_state(iterator, state["iterator"])
    return fetcher, iterator


def _has_samples(iterator: Any) -> bool:
    try:
        next(iterator)
    except StopIteration:
        return False
    except Exception:
        return True
    return True


def find_list_maker(dataset: Any) -> Any:
    """Returns the dataset whose ``__getitems__`` makes mini-batches; ``None`` without one."""
    while type(dataset) is Subset:  # its __getitems__ only forwards to that of the inner dataset
        dataset = dataset.dataset
    return dataset if getattr(dataset, "__getitems__", None) else None


def asked_samples(indices: list[Index]) -> int:
    return len(indices) if isinstance(indices, list) else 1  # batch_size=None


def made_samples(data: Any, asked: int) -> int:
    """Returns the number of samples in a batch of an iterable dataset.

    A worker's last batch may have fewer than ``asked``. If no length is found, it is ``asked``.
    """
    with contextlib.suppress(Exception):  # of a container of the user's: this is only a count
        for _ in range(_DEEPEST):  # the first part of a UserString is a UserString
            if isinstance(data, torch.Tensor):
                return min(len(data), asked) if data.dim() > 0 else asked
            is_container = isinstance(data, (Mapping, Sequence))
            if not is_container or isinstance(data, (str, bytes)) or len(data) == 0:
                break
            data = next(iter(data.values() if isinstance(data, Mapping) else data))
    return asked

"""The states of the global generators of Python, torch and numpy."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


@contextlib.contextmanager
def preserved_generators() -> Iterator[None]:
    """Context that restores the states of the global generators on exit."""
    states = generator_states()
    try:
        yield
    finally:
        set_generator_states(states)


def generator_states() -> tuple[Any, ...]:
    """Returns the states of the global generators of Python, torch and numpy."""
    return random.getstate(), torch.get_rng_state().numpy(), np.random.get_state()


def set_generator_states(states: tuple[Any, ...]) -> None:
    """Restores states of ``generator_states``."""
    random.setstate(states[0])
    torch.set_rng_state(torch.from_numpy(states[1]))
    np.random.set_state(states[2])

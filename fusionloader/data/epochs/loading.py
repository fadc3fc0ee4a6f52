"""What ``load_state_dict`` takes: a state of this rank, or those of another number of ranks."""

from __future__ import annotations

from collections.abc import Sequence

from fusionloader.data.epochs.epoch_state import EpochState
from fusionloader.data.epochs.identity import describe_loader
from fusionloader.data.epochs.resharding import load_resharded
from fusionloader.options.aliases import State
from fusionloader.options.loader_options import LoaderOptions

_RANKS = ("same", "reshard")


def load_state(options: LoaderOptions, state: State | Sequence[State], ranks: str) -> EpochState:
    """Returns where a loader stands after ``load_state_dict``, whose arguments these are.

    Raises:
        ValueError: as ``load_state_dict`` does.
    """
    if ranks not in _RANKS:
        raise ValueError(f"ranks should be one of {_RANKS}, not {ranks!r}")
    identity = describe_loader(options)
    if ranks == "reshard":
        return load_resharded(options, state, identity)
    if not isinstance(state, dict):
        raise ValueError(
            f"a state is a dict, not a {type(state).__name__}; those of several ranks are "
            'loaded with ranks="reshard"'
        )
    return EpochState.from_state(state, identity)

"""Where an epoch stands: what ``state_dict`` saves and ``load_state_dict`` brings back."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Any

import torch

VERSION = 1


@dataclass(slots=True)
class Progress:
    """An epoch's identity and the mini-batches of it that were delivered.

    Attributes:
        epoch: number of the epoch.
        seed: 64-bit seed of its random draws.
        generator: state of the generator that the sampler draws from, when the epoch began.
        delivered: mini-batches delivered without a gap from the start.
        ahead: numbers of those delivered beyond the first gap (``in_order=False``).
        finished: whether the epoch came to its end.
    """

    epoch: int
    seed: int
    generator: bytes
    delivered: int = 0
    ahead: set[int] = field(default_factory=set)
    finished: bool = False

    def deliver(self, number: int) -> None:
        """Notes that mini-batch ``number`` of the epoch went to the user."""
        self.ahead.add(number)
        while self.delivered in self.ahead:
            self.ahead.remove(self.delivered)
            self.delivered += 1

    def to_state(self, identity: dict[str, Any]) -> dict[str, Any]:
        """Returns a JSON-serialisable dictionary; ``identity`` describes the loader."""
        return {
            "version": VERSION,
            "loader": identity,
            "epoch": self.epoch,
            "seed": self.seed,
            "generator": base64.b64encode(self.generator).decode(),
            "delivered": self.delivered,
            "ahead": sorted(self.ahead),
            "finished": self.finished,
        }

    @classmethod
    def from_state(cls, state: dict[str, Any], identity: dict[str, Any]) -> Progress:
        """Undoes ``to_state``.

        Raises:
            ValueError: the state is not of such a loader; the message says what differs.
        """
        if not isinstance(state, dict) or state.get("version") != VERSION:
            raise ValueError(
                "this is not a state of FusionLoader.state_dict(), or one of another version "
                f"(expected version {VERSION})"
            )
        theirs = state["loader"]
        for name, ours in identity.items():
            if theirs.get(name) != ours:
                raise ValueError(
                    f"the state was saved by a loader with {name} = {theirs.get(name)!r}, and this "
                    f"one has {ours!r}: the remaining batches would not be the same"
                )
        return cls(
            state["epoch"],
            state["seed"],
            base64.b64decode(state["generator"]),
            state["delivered"],
            set(state["ahead"]),
            state["finished"],
        )


def generator_state(generator: torch.Generator | None) -> bytes:
    """Returns the state of ``generator``, or of torch's global one."""
    chosen = torch.default_generator if generator is None else generator
    return bytes(chosen.get_state().numpy().tobytes())


def set_generator_state(generator: torch.Generator | None, state: bytes) -> None:
    """Undoes ``generator_state``."""
    chosen = torch.default_generator if generator is None else generator
    chosen.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

"""What every kind of epochs is told, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BATCH = 4
REPEATS = 3  # how often an epoch goes through the images
IMAGES = 40

# Groups of faults that a kind is subject to, beside signals and consumers.
FILES = "files"  # samples are image files that can be damaged
SKIPS = "skips"  # bad samples can be left out
DISK = "disk"  # something is written to `Setting.written`


@dataclass(frozen=True, slots=True)
class Setting:
    """A run of a kind.

    Attributes:
        kind: its name.
        room: the module that has it.
        folder: of the run; ``images`` in it are its own copy.
        disk: folder of a disk that can be full, for ``written``.
        plain: whether to make the same batches with none of what the kind is about.
        on_error, in_order: as in ``FusionLoader``.
        rank: number of the process, of as many as the kind has.
        word: that no other run has.
    """

    kind: str
    room: str
    folder: str
    disk: str
    plain: bool = False
    on_error: str = "raise"
    in_order: bool = True
    rank: int = 0
    word: str = ""

    @property
    def images(self) -> str:
        return str(Path(self.folder) / "images")

    @property
    def written(self) -> str:
        return str(Path(self.disk) / self.word)


@dataclass(frozen=True, slots=True)
class Part:
    """A loader, whose epochs are taken batch by batch.

    Attributes:
        loader: that is iterated again and again.
        order: indices of an epoch's samples, in the order of its rows.
        paths: of the sample's files, by index; empty where they have none.
    """

    loader: Iterable[Any]
    order: list[int]
    paths: list[str] = field(default_factory=list)


def nothing() -> None:
    """Does nothing."""


@dataclass(frozen=True, slots=True)
class Epochs:
    """The loaders of a process.

    Attributes:
        parts: of which batches are taken in any order.
        recover: starts anew, between epochs, what the loaders do not start themselves.
        close: ends all.
    """

    parts: list[Part]
    close: Callable[[], None]
    recover: Callable[[], None] = nothing


@dataclass(frozen=True, slots=True)
class EpochKind:
    """How to run epochs of a part of the loader.

    Attributes:
        name: of the kind.
        make: makes the loaders, in their process.
        processes: that train beside one another.
        ranks: whether they are the ranks of one training.
        made_by: what of ``Tally.made_by`` has to happen; empty where nothing is counted.
        subject_to: groups of faults.
        traps: places in user code that can be made to fail, of ``chaos.traps``.
        any_order: whether batches can be delivered as they are done.
        ends_with: places after whose error nothing comes.
        leaves: descriptors that a library which it uses leaves open in each process.
        in_training: whether samples are made in the training process, which must not end.
        in_suite: whether the suite runs it shortly; the others are for `make matrix`.
        needs: modules without which there is nothing to run.
    """

    name: str
    make: Callable[[Setting], Epochs]
    processes: int = 1
    ranks: bool = False
    made_by: str = ""
    subject_to: frozenset[str] = frozenset()
    traps: tuple[str, ...] = ()
    any_order: bool = True
    ends_with: tuple[str, ...] = ("sampler",)
    leaves: int = 0
    in_training: bool = False
    in_suite: bool = False
    needs: tuple[str, ...] = ()

    @property
    def jobs(self) -> bool:
        """Whether each process is a training by itself, which shares with the others."""
        return self.processes > 1 and not self.ranks


def order_of(count: int, part: int = 0, repeats: int = REPEATS) -> list[int]:
    """Returns indices of an epoch: all of them, again and again, in an order of the part's own."""
    step = (7, 11, 13)[part % 3]
    return [(place * step + part) % count for place in range(count * repeats)]

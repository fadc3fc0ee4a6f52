"""Whether what training was given is what it should have been given."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from chaos.tally import Tally
from chaos.traps import Sprung


@dataclass(frozen=True, slots=True)
class Excuse:
    """An error that a fault may cause.

    Attributes:
        says: a pattern of its text.
        index: of a sample that has to be in the batch, if it is one.
        ends: whether its epoch ends with it.
    """

    says: str
    index: int | None = None
    ends: bool = False

    def holds(self, text: str, indices: list[int]) -> bool:
        return re.search(self.says, text) is not None and (
            self.index is None or self.index in indices
        )


class Checks:
    """What a run may be told, and what it has counted.

    Attributes:
        tally: of the run.
        bad_samples: those that may be left out.
    """

    def __init__(self, folder: Path, skips: bool) -> None:
        """``skips``: whether bad samples are left out, where they would be errors."""
        self.tally = Tally(runs=1)
        self.bad_samples: set[int] = set()
        self._folder, self._skips = folder, skips
        self._excuses: list[Excuse] = []

    def excuse(self, says: str, index: int | None = None, ends: bool = False) -> None:
        """Notes an error that may come from now on."""
        excuse = Excuse(says, index, ends)
        if excuse not in self._excuses:
            self._excuses.append(excuse)

    def error(self, text: str, indices: list[int]) -> Excuse:
        """Returns what excuses an error in a batch.

        Raises:
            AssertionError: nothing does.
        """
        traps = [Excuse(rf"{Sprung.__name__}.* of sample {i}\b", i) for i in self._sprung()]
        found = next((e for e in (*self._excuses, *traps) if e.holds(text, indices)), None)
        assert found is not None, f"an error that nothing explains: {text}"
        self.tally.errors[text.split(":")[0]] += 1
        return found

    def end(self, epoch: int, position: int, wanted: list[list[str]]) -> None:
        """Checks that an epoch is whole.

        Raises:
            AssertionError: it ends too early.
        """
        self.tally.epochs += 1
        missing = wanted[position:]
        self.tally.lost += sum(map(len, missing))
        assert not missing, f"epoch {epoch} ends after {position} of {len(wanted)} batches"

    def batch(
        self,
        place: tuple[int, int],
        rows: list[str],
        wanted: list[list[str]],
        indices: list[int],
    ) -> None:
        """Compares the rows of a batch, of which ``place`` has its epoch and its number there.

        Raises:
            AssertionError: they differ.
        """
        epoch, position = place
        self.tally.batches += 1
        self.tally.samples += len(rows)
        if position >= len(wanted):
            self.tally.doubled += len(rows)
            raise AssertionError(f"epoch {epoch} has more than {len(wanted)} batches")
        expected = wanted[position]
        if self._skips and len(rows) < len(expected):
            bad = self.bad_samples | self._sprung()
            good = {row for row, i in zip(expected, indices, strict=True) if i not in bad}
            # A sample may be bad once, and good when it comes again.
            self.tally.skipped += len(expected) - len(rows)
            same = rows == [row for row in expected if row in rows] and good <= set(rows)
        else:
            same = self.tally.compare(rows, expected)
        assert same, f"batch {position} of epoch {epoch} differs, samples {indices}"

    @property
    def told(self) -> int:
        """Errors, and samples that were left out."""
        return self.tally.skipped + self.tally.errors.total()

    def kept(self, changed: int) -> None:
        """Checks that no batch that training has kept is another now.

        Raises:
            AssertionError: so many are.
        """
        self.tally.altered += changed
        assert not changed, f"{changed} batches that were kept have changed"

    def traps(self) -> list[list[str]]:
        """Where traps were sprung, what they did, and at which samples."""
        log = self._folder / "sprung"
        return [line.split() for line in log.read_text().splitlines()] if log.exists() else []

    def _sprung(self) -> set[int]:
        return {int(index) for _, _, index in self.traps()} - {-1}

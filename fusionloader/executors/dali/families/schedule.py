"""In which order tasks run when every sample has a list of its own. No DALI here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

Run = tuple[str, list[int]]


def runs(wanted: Sequence[Sequence[str]], most: int) -> Iterator[Run]:
    """Runs of tasks, each on at most ``most`` samples, that give every sample its tasks in order.

    ``wanted`` are each sample's tasks. A run has a fixed cost, so few are better: a sample waits
    while another task serves more of them. The task that most samples need next goes first, and of
    those the one that the fewest will need later.
    """
    done = [0] * len(wanted)
    while True:
        waiting = [sample for sample, place in enumerate(done) if place < len(wanted[sample])]
        if not waiting:
            return
        next_ones = Counter(wanted[sample][done[sample]] for sample in waiting)
        later = Counter(
            task for sample in waiting for task in set(wanted[sample][done[sample] + 1 :])
        )
        task = min(next_ones, key=lambda name: (-next_ones[name], later[name], name))
        served = [sample for sample in waiting if wanted[sample][done[sample]] == task]
        for sample in served:
            done[sample] += 1
        for begin in range(0, len(served), most):
            yield task, served[begin : begin + most]

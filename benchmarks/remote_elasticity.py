"""Does throughput follow the number of remote workers while an epoch runs, and how fast?

Workers sleep for 60 ms per tiny-batch instead of computing, so that two cores can stand for many.
The addresses that a loader may ask change from 4 to 8, 12, 8 and 4 of them. Tiny-batches of remote
workers are counted; the local worker's are not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

from torchvision.datasets import ImageFolder

from benchmarks.remote_workers import ELEMENTS, loader_of, remote_of, token
from benchmarks.sleeping_workers import sleeping_workers
from benchmarks.study import parser_of, publish
from fusionloader import FusionLoader
from fusionloader.cli.bench import setting_of
from fusionloader.cli.progress import Progress
from fusionloader.options.remote_settings import Remote
from fusionloader.sharing.remote import remote_workers
from fusionloader.sharing.remote.fleet import Fleet
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity, read_token

COUNTS = (4, 8, 12, 8, 4)
_WORK_SECONDS = 0.06
_SETTLE_SECONDS = 1.0
_COUNT_SECONDS = 4.0
_DRAIN_SECONDS = 10.0
_MOST_SAMPLES = 200_000  # of an epoch: more than there is time for


class ChangingFleet(Fleet):
    """Workers of which as many may be asked as ``count`` says."""

    def __init__(self, addresses: Sequence[Address], identity: Identity) -> None:
        super().__init__(addresses, identity)
        self.count = COUNTS[0]

    def addresses(self) -> Sequence[Address]:
        """Returns the first ``count``."""
        return super().addresses()[: self.count]


class Epochs:
    """Takes the batches of a loader, epoch after epoch, while something is measured."""

    def __init__(self, loader: FusionLoader[Any]) -> None:
        self._loader = loader
        self._batches = self._all()

    def _all(self) -> Iterator[Any]:
        while True:
            yield from self._loader

    def tiny_batches(self) -> dict[str, int]:
        """Returns how many each remote worker has made."""
        stats = self._loader.stats().remote
        assert stats is not None
        return {worker.address: worker.tiny_batches for worker in stats.workers}

    def take(self, seconds: float) -> None:
        """Takes batches for so long."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            next(self._batches)

    def rate(self, seconds: float) -> float:
        """Returns remote tiny-batches per second."""
        start, before = time.perf_counter(), sum(self.tiny_batches().values())
        self.take(seconds)
        made = sum(self.tiny_batches().values()) - before
        return made / (time.perf_counter() - start)

    def drain_seconds(self, left: set[str]) -> float:
        """Returns how long workers that were told to leave went on to answer."""
        start = last = time.perf_counter()
        before = self.tiny_batches()
        while time.perf_counter() - max(start, last) < _SETTLE_SECONDS:
            next(self._batches)
            now = self.tiny_batches()
            if any(now[address] > before[address] for address in left):
                last, before = time.perf_counter(), now
            if last - start > _DRAIN_SECONDS:
                raise SystemExit("workers that should have left still work")
        return last - start


def one_round(loader: FusionLoader[Any], fleet: ChangingFleet) -> tuple[list[float], list[float]]:
    """Returns tiny-batches per second for each of ``COUNTS``, and drain times in seconds."""
    epochs = Epochs(loader)
    rates, drains = [], []
    for count in COUNTS:
        leaving = {str(address) for address in fleet.addresses()[count:]}
        fleet.count = count
        if leaving:
            drains.append(epochs.drain_seconds(leaving))
        else:
            epochs.take(_SETTLE_SECONDS)
        rates.append(epochs.rate(_COUNT_SECONDS))
    return rates, drains


def main() -> None:
    parser = parser_of(__doc__, rounds=3)
    parser.set_defaults(workers=1, images=1000)
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    dataset = ImageFolder(str(setting.folder().absolute()), ELEMENTS["uint8"])
    # No epoch ends while something is counted: at its end workers wait for the next one.
    dataset.samples = dataset.samples * (_MOST_SAMPLES // len(dataset.samples) + 1)
    rates: list[list[float]] = []
    drains: list[float] = []
    with (
        token() as token_file,
        sleeping_workers(read_token(token_file), max(COUNTS), 1, _WORK_SECONDS) as addresses,
        Progress("elasticity", options.rounds) as progress,
    ):
        fleet = ChangingFleet(addresses, Identity.of(read_token(token_file)))

        def changing_fleet(
            settings: Remote, num_workers: int, ranks: object = None
        ) -> ChangingFleet:
            return fleet

        remote_workers.make_fleet = changing_fleet
        remote = remote_of(str(addresses[0]), token_file, "shared", "all")
        with loader_of(dataset, options, remote) as loader:
            for _ in range(options.rounds):
                found, drained = one_round(loader, fleet)
                rates.append(found)
                drains += drained
                progress.advance()
    rows = []
    for place, count in enumerate(COUNTS):
        rate = median(each[place] for each in rates)
        asleep = median(each[place] * _WORK_SECONDS / count for each in rates)
        followed = median(each[place] / each[0] / (count / COUNTS[0]) for each in rates)
        rows.append((str(count), f"{rate:.1f}", f"{asleep:.1%}", f"{followed:.1%}"))
    print("drained after " + ", ".join(f"{each:.2f} s" for each in drains))
    header = ("remote workers", "tiny-batches/s", "asleep", "of proportional to the first")
    publish(options, header, rows, rates=rates, drain_seconds=drains, corpus=corpus)


if __name__ == "__main__":
    main()

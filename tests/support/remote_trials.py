"""Epochs of a loader with remote workers, each batch beside that of a loader by itself."""

import contextlib
import time

from support.remote_workers import assert_same, folder_loader, remote_loader
from support.waiting import PATIENCE, gone

BATCHES = [list(range(start, start + 8)) for start in range(0, 40, 8)] * 4
OPTIONS = {
    "batch_sampler": BATCHES,
    "batch_size": 1,
    "shuffle": False,
    "tiny_batch_size": 2,
    "prefetch_factor": 4,
}


class Expected:
    """The epochs of a loader without remote workers, made when they are asked for."""

    def __init__(self, folder):
        self._loader = folder_loader(folder, **OPTIONS)
        self._epochs = []

    def __getitem__(self, epoch):
        while len(self._epochs) <= epoch:
            self._epochs.append([arrays(batch) for batch in self._loader])
        return self._epochs[epoch]

    def close(self):
        self._loader.close()


def arrays(batch):
    return [tensor.numpy().copy() for tensor in batch]


class Trial:
    """Takes batches, one epoch after the other; none may be another, or missing, or too many.

    Attributes:
        loader: that is tried.
        epochs: that were begun.
    """

    def __init__(self, loader, expected):
        self.loader, self._expected = loader, expected
        self.epochs = 0
        self._iterator = None

    def step(self):
        """Takes a batch, or sees that the epoch has no more."""
        if self._iterator is None:
            self._iterator = iter(self.loader)
            self._wanted = list(self._expected[self.epochs])
            self.epochs += 1
        batch = next(self._iterator, None)
        if batch is None:
            assert not self._wanted
            self._iterator = None
            return
        assert_same([arrays(batch)], [self._wanted.pop(0)])

    def steps(self, count):
        for _ in range(count):
            self.step()

    def until(self, condition, otherwise="it has not come to that"):
        """Trains on until something has happened."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"{otherwise}: {self.remote}"
            self.step()

    def finish(self):
        """Takes the rest of the epoch."""
        while self._iterator is not None:
            self.step()

    def leave(self):
        """Leaves the epoch."""
        self._iterator = None

    @property
    def remote(self):
        return self.loader.stats().remote

    def serves(self, more=1):
        """Trains on until remote workers have made more samples."""
        wanted = self.remote.samples + more if self.remote else more
        self.until(lambda: self.remote and self.remote.samples >= wanted, "nothing is made there")

    @property
    def processes(self):
        """Of the epoch that has begun."""
        return list(self._iterator._workers)

    @property
    def proxies(self):
        """Processes that have spoken to remote workers; a lane keeps the pid of one that ended."""
        return {each.pid for each in self.loader.stats().workers if each.kind == "remote"}

    @property
    def live_proxies(self):
        return {pid for pid in self.proxies if not gone(pid)}


@contextlib.contextmanager
def trial(folder, expected, workers, token_file, **options):
    """A loader that has remote workers, after they have made something."""
    with remote_loader(folder, workers, token_file, **(OPTIONS | options)) as loader:
        yield Trial(loader, expected)

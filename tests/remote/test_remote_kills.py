"""Random troubles over many short epochs: each sample comes once, and is the same.

FUSIONLOADER_KILLS asks for more of them than the few of a usual run.
"""

import contextlib
import os
import random
import signal
import time
from collections import Counter

import pytest
from support.campaigns import SEED, kills
from support.remote_trials import BATCHES, Expected, trial
from support.remote_workers import GO_ON, STOP, RemoteWorker
from support.shaped_relay import ShapedRelay

TROUBLES = kills(12)
EPOCHS_OF_A_LOADER = 40  # what it should give is kept: so many epochs, and then another loader


class Troubles:
    """Three workers, one of them behind a network, and what happens to them."""

    def __init__(self, token_file, generator):
        self._token_file, self._generator = token_file, generator
        self.workers = [RemoteWorker(token_file) for _ in range(3)]
        self.relay = ShapedRelay(self.workers[2].address)
        self.addresses = [*(worker.address for worker in self.workers[:2]), self.relay.address]
        self._stopped = set()
        self.counts = Counter()

    def strike(self, trained):
        """Something happens; what has happened before may come to an end."""
        self._recover()
        trouble = self._generator.choice(
            [
                "kill a worker",
                "end a worker",
                "stop a worker",
                "kill the proxy",
                "kill a worker here",
            ]
            + ["cut", "cut an answer", "freeze", "leave the epoch"]
        )
        number = self._generator.randrange(3)
        worker = self.workers[number]
        if trouble == "kill a worker":
            worker.send(signal.SIGKILL)
        elif trouble == "end a worker":
            worker.send(signal.SIGTERM)
        elif trouble == "stop a worker":
            worker.send(STOP)
            self._stopped.add(number)
        elif trouble == "kill the proxy":
            self._kill(trained.proxies)
        elif trouble == "kill a worker here":
            self._kill(each.pid for each in trained.loader.stats().workers if each.kind == "native")
        elif trouble == "cut":
            self.relay.cut()
        elif trouble == "cut an answer":
            self.relay.cut_after = self.relay.forwarded + self._generator.randrange(20_000)
        elif trouble == "freeze":
            self.relay.freeze()
        else:
            trained.leave()
        self.counts[trouble] += 1

    @staticmethod
    def _kill(pids):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _recover(self):
        for number in list(self._stopped):
            if self._generator.random() < 0.5:
                self.workers[number].send(GO_ON)
                self._stopped.remove(number)
        if self._generator.random() < 0.5:
            self.relay.heal()
        for number, worker in enumerate(self.workers):
            if number not in self._stopped and worker.process.poll() is not None:
                worker.end()
                self.workers[number] = RemoteWorker(self._token_file, worker.address)

    def recover(self):
        """All is well again."""
        self.relay.heal()
        while self._stopped:
            self.workers[self._stopped.pop()].send(GO_ON)
        self._recover()

    def end(self):
        self.relay.close()
        for worker in self.workers:
            worker.end()


@pytest.mark.kills
@pytest.mark.timeout(200 + 5 * TROUBLES)
@pytest.mark.usefixtures("any_may_die")
def test_whatever_happens_each_sample_comes_once(image_folder, token_file):
    generator = random.Random(SEED)
    expected, troubles = Expected(image_folder), Troubles(token_file, generator)
    epochs = batches = samples = lost = 0
    longest, began = 0.0, time.monotonic()
    while troubles.counts.total() < TROUBLES:
        troubles.recover()
        with trial(image_folder, expected, troubles.addresses, token_file) as trained:
            trained.serves()
            while trained.epochs < EPOCHS_OF_A_LOADER and troubles.counts.total() < TROUBLES:
                before = trained.remote.samples
                for _ in range(generator.randrange(2 * len(BATCHES))):
                    trained.step()
                    if trained.remote.samples > before and generator.random() < 0.3:
                        break  # while it is at work
                troubles.strike(trained)
                trained.step()
            longest = max(longest, trained.longest)
            trained.finish()
            epochs, batches = epochs + trained.epochs, batches + trained.batches
            samples, lost = samples + trained.remote.samples, lost + trained.remote.leases_lost
    troubles.end()
    expected.close()
    assert batches * len(BATCHES[0]) >= samples > 0
    print(f"{dict(troubles.counts)}: {epochs} epochs, {batches} batches, {samples} samples made")
    print(f"there, {lost} leases lost, at most {longest:.2f} s for a batch")
    print(f"in {time.monotonic() - began:.0f} s")

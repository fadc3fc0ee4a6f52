"""What loaders cost while somebody only takes their batches."""

import os
import signal
import threading

from support.waiting import wait_until

from fusionloader import FusionLoader
from fusionloader.cli.analysis.drains import drain
from fusionloader.cli.analysis.probes import CyclicBatches


class Squares:
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index * index


def test_samples_are_made_in_a_drain_however_far_ahead_the_worker_is(monkeypatch):
    asked, stats = [], FusionLoader.stats

    def ahead_and_stopped(loader):
        asked.append(stats(loader))
        if len(asked) == 1:
            wait_until(lambda: all_made(stats(loader)))
            (worker,) = stats(loader).workers
            os.kill(worker.pid, signal.SIGSTOP)
            threading.Timer(0.3, os.kill, (worker.pid, signal.SIGCONT)).start()
            asked[0] = stats(loader)
        return asked[-1]

    def all_made(found):
        (worker,) = found.workers
        return worker.samples == 8 * (found.batches + found.in_flight)

    monkeypatch.setattr(FusionLoader, "stats", ahead_and_stopped)
    repeated = CyclicBatches([list(range(8))])
    drained = drain(FusionLoader(Squares(), batch_sampler=repeated, num_workers=1), 0.0)
    assert drained.samples and any(stage.samples for stage in drained.stages)

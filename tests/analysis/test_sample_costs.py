"""What samples cost, one by one."""

import time

import torch

from fusionloader import FusionLoader
from fusionloader.cli.analysis import service
from fusionloader.cli.analysis.service import SampleCost, sample_costs


class Remote:
    """Samples that wait for something and compute nothing, and others that only compute."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        if index % 2:
            time.sleep(0.02)
        else:
            until = time.thread_time() + 0.02
            while time.thread_time() < until:
                pass
        return index


class Clock:
    """A thread's seconds: all of them, those on a core, and those in which others had the core."""

    wall = core = delay = 0

    def perf_counter(self):
        return self.wall

    def thread_time(self):
        return self.core


def test_samples_compute_in_one_thread_as_in_a_worker():
    seen = []

    class Threads(Remote):
        def __getitem__(self, index):
            seen.append(torch.get_num_threads())
            return index

    before = torch.get_num_threads()
    sample_costs(FusionLoader(Threads(), 4), dict.fromkeys(range(20), 0))
    assert set(seen) == {1} and torch.get_num_threads() == before


# A busy machine adds to either, so that nothing is said here of the most that they are.
def test_samples_take_the_time_of_a_thread():
    costs = sample_costs(FusionLoader(Remote(), 4), dict.fromkeys(range(20), 0))
    assert all(each.waiting + 1e-3 >= 0.02 for each in costs[1::2])
    assert all(each.seconds >= 0.02 for each in costs[::2])


def test_computing_and_waiting_are_told_apart(monkeypatch):
    clock = Clock()

    class Timed(Remote):
        def __getitem__(self, index):
            if index % 2:
                clock.wall += 2
            else:
                clock.wall, clock.core, clock.delay = (
                    clock.wall + 4,
                    clock.core + 1,
                    clock.delay + 3,
                )
            return index

    monkeypatch.setattr(service, "time", clock)
    monkeypatch.setattr(service, "_run_delay", lambda: clock.delay)
    costs = sample_costs(FusionLoader(Timed(), 4), dict.fromkeys(range(20), 0))
    assert costs == [SampleCost(0, 1, 0), SampleCost(0, 0, 2)] * 10


def test_the_kernel_says_how_long_others_had_the_core(monkeypatch, tmp_path):
    file = tmp_path / "schedstat"
    monkeypatch.setattr(service, "Path", lambda _: file)
    assert service._run_delay() == 0.0
    file.write_text("5 3000000000 1\n")
    assert service._run_delay() == 3.0

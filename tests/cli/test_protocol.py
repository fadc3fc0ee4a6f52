"""The protocol of measurement: interleaving, medians, ratios, noise and processes' costs."""

import subprocess
import sys

import pytest

from fusionloader.cli.measure.processes import cpu_between, descendants, read_cpu, read_memory
from fusionloader.cli.measure.protocol import (
    Contender,
    Epoch,
    Result,
    Running,
    measure,
    per_round_ratios,
    timed_epoch,
)


def epoch_of(rate: float) -> Epoch:
    return Epoch(
        samples=110, counted=100, first_batch=0.1, steady=100 / rate, total=1.0, cpu_main=0.1,
        cpu_workers=1.0,
    )  # fmt: skip


def result_of(*rates: float) -> Result:
    nothing = Contender("x", "x", lambda: Running(lambda: iter(()), lambda: None))
    return Result(nothing, epochs=[epoch_of(rate) for rate in rates])


def recording(name: str, log: list[str]) -> Contender:
    def epoch():
        log.append(name)
        yield 2
        yield 3

    return Contender(name, name, lambda: Running(epoch, lambda: log.append(f"close {name}")))


def test_contenders_alternate_after_one_uncounted_epoch_and_are_closed():
    log: list[str] = []
    results, repeated = measure([recording("a", log), recording("b", log)], 3, retries=0)
    assert log == ["a", "b", *["a", "b"] * 3, "close a", "close b"]
    assert [len(result.epochs) for result in results] == [3, 3]
    assert repeated == 0


def test_a_failing_contender_leaves_no_contender_running():
    log: list[str] = []

    def broken() -> Running:
        raise RuntimeError("no such loader")

    with pytest.raises(RuntimeError, match="no such loader"):
        measure([recording("a", log), Contender("b", "b", broken)], 1)
    assert log == ["a", "close a"]


def test_the_rate_leaves_out_the_first_batch():
    measured = timed_epoch(Running(lambda: iter((2, 3, 4)), lambda: None))
    assert (measured.samples, measured.counted) == (9, 7)
    assert measured.rate == pytest.approx(7 / measured.steady)


def test_an_epoch_without_batches_is_an_error():
    with pytest.raises(RuntimeError, match="no batch"):
        timed_epoch(Running(lambda: iter(()), lambda: None))


def test_ratios_pair_the_epochs_of_one_round():
    ratios = per_round_ratios(result_of(200, 330, 100), result_of(100, 110, 50))
    assert ratios == pytest.approx([2.0, 3.0, 2.0])


def test_a_spread_of_more_than_15_percent_is_noisy():
    assert not result_of(95, 100, 105).noisy
    assert result_of(90, 100, 110).noisy


def test_noise_is_measured_again_as_often_as_allowed():
    log: list[str] = []
    # Two empty-handed batches take microseconds: epochs that short always differ.
    _, repeated = measure([recording("a", log)], 5, retries=2)
    assert 0 <= repeated <= 2
    assert log.count("a") == 1 + 5 * (repeated + 1)


def test_the_cpu_time_of_children_is_counted_alive_and_dead():
    burn = "import time; t = time.process_time()\nwhile time.process_time() - t < 0.3: pass\n"
    before = read_cpu()
    child = subprocess.Popen(
        [sys.executable, "-c", burn + "print(flush=True); input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert child.stdout is not None
    child.stdout.readline()
    assert child.pid in descendants()
    memory = read_memory(child.pid)
    assert memory is not None and memory.peak_rss >= memory.rss >= memory.pss >= memory.uss > 1e6
    alive = read_cpu()
    assert 0.27 < cpu_between(before, alive)[1] < 3.0
    child.communicate(b"\n")
    dead = read_cpu()
    assert 0.27 < cpu_between(before, dead)[1] < 3.0
    assert cpu_between(alive, dead)[1] < 0.25

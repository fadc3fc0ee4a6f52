"""What is said of the processors that workers got, and how it is counted."""

import threading
import time

import pytest
import torch
from support.waiting import wait_until
from torch.utils.data import Dataset

from fusionloader import FusionLoader
from fusionloader.observe.statistics.processor_use import ProcessorUse, ProcessorWatch
from fusionloader.observe.statistics.stages import StageStats
from fusionloader.observe.statistics.worker_limit import worker_limit
from fusionloader.system.limits import processors
from fusionloader.system.limits.control_groups import throttling_files

STAGES = (StageStats("read", 1000, 8.0, 250.0), StageStats("decode", 1000, 2.0, 1000.0))


def use(cores=2.0, **changes):
    """Ten seconds with two workers that were always busy, and got all that they could use."""
    values = {
        "quota": None,
        "seconds": 10.0,
        "training_cpu_seconds": 1.0,
        "pressure_seconds": 1.0,
        "busy_seconds": 20.0,
        "cpu_seconds": 18.0,
        "delay_seconds": 1.0,
    }
    return ProcessorUse(cores, **{**values, **changes})


def limit(found):
    return worker_limit(STAGES, found)


def test_the_costliest_stage_limits_workers_that_get_their_cores():
    assert use().shortage() is None
    assert limit(use()).sentence == "workers spend 80% of their time on reading files"
    assert limit(None).stage == "read"


def test_other_processes_are_named_where_workers_wait_for_cores():
    found = use(cpu_seconds=4.0, delay_seconds=16.0)
    assert found.shortage().cause == "others"
    assert limit(found).sentence == (
        "workers got 20% of a core each, and other processes take the rest"
    )
    assert limit(found).stage == ""


def test_workers_that_have_all_cores_take_them_from_each_other():
    found = use(cpu_seconds=18.0, delay_seconds=50.0, busy_seconds=70.0)
    assert found.shortage().cause == "own"
    assert "its 2 cores are busy with workers and training" in limit(found).sentence
    assert (
        use(1.0, cpu_seconds=9.0, delay_seconds=9.0)
        .shortage()
        .sentence.startswith("its 1 core is busy")
    )


def test_a_quota_that_stops_the_process_is_named_before_all_else():
    found = use(0.5, quota=0.5, periods=100, throttled_periods=93, cpu_seconds=4, delay_seconds=0)
    assert found.shortage().cause == "throttled"
    assert limit(found).sentence == (
        "the container is throttled to its CPU quota of 0.5 cores, in 93% of the periods"
    )
    seldom = use(0.5, quota=0.5, periods=100, throttled_periods=5)
    assert seldom.shortage() is None


def test_workers_that_wait_for_storage_are_not_said_to_want_cores():
    found = use(cpu_seconds=1.0, delay_seconds=4.5)
    assert found.shortage() is None
    assert limit(found).sentence == (
        "workers wait 72% of their time for storage or a lock, in reading files"
    )


@pytest.mark.parametrize(("pressure", "cause"), [(8.0, "others"), (2.0, None), (None, None)])
def test_pressure_tells_where_the_kernel_does_not_count_delays(pressure, cause):
    found = use(cpu_seconds=4.0, delay_seconds=0.0, pressure_seconds=pressure)
    shortage = found.shortage()
    assert (shortage and shortage.cause) == cause
    assert found.worker_share is None


def test_without_workers_the_training_process_makes_the_samples():
    none = {"busy_seconds": 9.0, "cpu_seconds": 0.0, "delay_seconds": 0.0}
    found = use(training_cpu_seconds=3.0, training_delay_seconds=6.0, **none)
    assert limit(found).sentence == (
        "the training process got 33% of a core, and other processes take the rest"
    )
    assert limit(use(**none)).sentence == ("80% of the time for samples is spent on reading files")


def test_a_use_since_another_has_what_came_after_it():
    first, both = use(), use(seconds=25.0, cpu_seconds=20.0, pressure_seconds=4.0)
    after = both.since(first)
    assert (after.seconds, after.cpu_seconds, after.pressure_seconds) == (15.0, 2.0, 3.0)
    assert after.cores == 2.0
    assert first.plus(after) == both


# ---- what is read ------------------------------------------------------------------------------


def test_counts_of_both_versions_of_control_groups_are_found(tmp_path):
    groups = tmp_path / "cgroup"
    groups.write_text("1:cpu,cpuacct:/one\n0::/two/three\n")
    for folder, quota in {"cpu,cpuacct/one": True, "two": True, "two/three": False}.items():
        group = tmp_path / "fs/cgroup" / folder
        group.mkdir(parents=True, exist_ok=True)
        throttled = "nr_periods 7\nnr_throttled 3\nthrottled_usec 5\n" if quota else ""
        (group / "cpu.stat").write_text(f"usage_usec 5\n{throttled}")
    found = throttling_files(groups, tmp_path)
    assert [str(each.relative_to(tmp_path / "fs/cgroup").parent) for each in found] == [
        "cpu,cpuacct/one",
        "two",
    ]
    assert processors._periods(found[0]) == (7, 3)


def test_the_pressure_of_the_last_seconds_is_read(monkeypatch, tmp_path):
    file = tmp_path / "cpu"
    file.write_text("some avg10=12.50 avg60=1.00 avg300=0.10 total=77000\nfull avg10=1.00\n")
    monkeypatch.setattr(processors, "_PRESSURE", str(file))
    assert processors.recent_pressure() == 0.125
    assert processors.ProcessorCounts.now().pressure_seconds == 0.077


def test_a_machine_that_counts_nothing_has_no_figures(monkeypatch, tmp_path):
    monkeypatch.setattr(processors, "_PRESSURE", str(tmp_path / "none"))
    found = processors.ProcessorCounts.now(thread=0)
    assert (found.pressure_seconds, found.delay_seconds) == (None, 0.0)
    assert processors.recent_pressure() is None


def test_epochs_count_and_the_time_between_them_does_not(monkeypatch):
    watch, now = ProcessorWatch(), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for _ in range(2):
        watch.epoch_began()
        now[0] += 5
        watch.epoch_ended()
        now[0] += 1000
    assert watch.use(0, 0, 0).seconds == pytest.approx(10)
    watch.epoch_began()
    now[0] += 3
    assert watch.use(0, 0, 0).seconds == pytest.approx(13)


class Burning(Dataset):
    """Samples that compute for 4 ms, or sleep so long."""

    def __init__(self, sleeps):
        self.sleeps = sleeps

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if self.sleeps:
            time.sleep(0.004)
        end = time.thread_time() + (0 if self.sleeps else 0.004)
        while time.thread_time() < end:
            pass
        return torch.tensor(index)


@pytest.mark.parametrize("options", [{}, {"collate_fn": list}])
def test_workers_count_the_processor_time_of_what_they_compute(options):
    found = []
    for sleeps in (False, True):
        loader = FusionLoader(Burning(sleeps), 4, num_workers=1, **options)
        list(loader)
        stats = loader.stats()
        (worker,) = stats.workers
        assert worker.cpu_seconds == pytest.approx(stats.processors.cpu_seconds)
        assert worker.cpu_seconds <= worker.busy_seconds * 1.1
        found.append(worker.cpu_seconds)
    # Of 160 ms. What came after the last look, 10 ms before the end, is not counted yet.
    assert found[0] > max(0.1, found[1])


def test_the_time_in_iter_is_counted_apart_from_the_first_wait():
    loader = FusionLoader(Burning(True), 4, num_workers=1)
    before = time.perf_counter()
    iterator = iter(loader)
    entered = time.perf_counter() - before
    next(iterator)
    waits = loader.stats().waits
    assert 0 < waits.iter_seconds <= entered
    assert waits.startup_seconds == waits.iter_seconds + waits.first_seconds
    assert f"First batches came {waits.startup_seconds:.3g} s after iter()" in str(loader.stats())


def test_another_thread_reads_what_the_training_thread_got():
    loader, found = FusionLoader(Burning(False), 4), []
    iterator = iter(loader)
    next(iterator)
    thread = threading.Thread(target=lambda: found.append(loader.stats().processors))
    thread.start()
    wait_until(lambda: found, "stats() did not return")
    thread.join()
    assert found[0].seconds > 0 and found[0].training_cpu_seconds > 0

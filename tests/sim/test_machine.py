"""What simulated workers share: cores, and a storage."""

import pytest

from fusionloader.cli.simulator.engine import Engine
from fusionloader.cli.simulator.machine import Cores, MachineModel, SimulatedMachine, Storage
from fusionloader.cli.simulator.times import Sample


def ends_on(model, *works):
    """The moments at which works of (start, seconds, demand) end on the cores of a machine."""
    engine, ends = Engine(), {}
    cores = Cores(engine, model.speed)
    for number, (start, seconds, demand) in enumerate(works):

        def begin(number=number, seconds=seconds, demand=demand):
            cores.run(seconds, lambda: ends.update({number: engine.now}), demand)

        engine.after(start, begin)
    engine.run()
    return [ends[number] for number in range(len(works))]


def test_without_a_limit_everyone_has_a_core():
    assert ends_on(MachineModel(), (0, 2.0, 1), (0, 3.0, 1), (1, 1.0, 1)) == [2.0, 3.0, 2.0]


def test_more_workers_than_cores_share_them():
    assert ends_on(MachineModel(cores=1), (0, 2.0, 1), (0, 3.0, 1)) == pytest.approx([4.0, 5.0])


def test_who_begins_later_slows_the_others_down_from_then_on():
    assert ends_on(MachineModel(cores=1), (0, 2.0, 1), (1, 2.0, 1)) == pytest.approx([3.0, 4.0])


def test_work_of_several_threads_takes_several_shares():
    # Wanted are 1 + 2 cores of 2: both go at two thirds of their speed.
    assert ends_on(MachineModel(cores=2), (0, 2.0, 1), (0, 2.0, 2)) == pytest.approx([3.0, 3.0])


def test_busy_cores_slow_each_other_down_as_measured():
    model = MachineModel(cores=4, beside=0.8, measured=2)
    assert model.speed(1) == 1.0
    assert model.speed(2) == model.speed(4) == pytest.approx(0.8)
    assert model.speed(8) == pytest.approx(0.4)


def test_files_come_from_storage_one_after_the_other():
    engine, ends = Engine(), []
    machine = SimulatedMachine(engine, MachineModel(storage=Storage(100.0)))
    for _ in range(2):
        machine.make([Sample(50, 0.25, 0.0, 50)] * 2, lambda: ends.append(engine.now))
    engine.run()
    # Reads end at 0.5, 1, 1.5 and 2, each 0.25 before its sample is made.
    assert ends == pytest.approx([1.75, 2.25])


def test_latencies_of_several_readers_overlap():
    engine, ends = Engine(), []
    machine = SimulatedMachine(engine, MachineModel(storage=Storage(1e9, latency=1.0)))
    for _ in range(3):
        machine.make([Sample(0, 0.0, 0.0, 1)], lambda: ends.append(engine.now))
    engine.run()
    assert ends == pytest.approx([1.0, 1.0, 1.0])


def test_a_worker_that_waited_for_a_file_takes_a_while_to_run_again():
    engine, ends = Engine(), []
    machine = SimulatedMachine(engine, MachineModel(storage=Storage(100.0, wake=0.125)))
    for _ in range(2):
        machine.make([Sample(50, 0.25, 0.0, 50)], lambda: ends.append(engine.now))
    engine.run()
    assert ends == pytest.approx([0.875, 1.375])  # the storage goes on meanwhile


def test_what_is_cached_does_not_wait_for_storage():
    engine, ends = Engine(), []
    machine = SimulatedMachine(engine, MachineModel(storage=Storage(1.0)))
    machine.make([Sample(1000, 0.5, 0.0, 0)], lambda: ends.append(engine.now))
    engine.run()
    assert ends == [0.5]

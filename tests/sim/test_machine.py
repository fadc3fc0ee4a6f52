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


@pytest.mark.parametrize(
    ("cores", "works", "ends"),
    [
        (None, [(0, 2.0, 1), (0, 3.0, 1), (1, 1.0, 1)], [2.0, 3.0, 2.0]),
        (1, [(0, 2.0, 1), (0, 3.0, 1)], [4.0, 5.0]),
        (1, [(0, 2.0, 1), (1, 2.0, 1)], [3.0, 4.0]),  # slower from then on
        # Wanted are 1 + 2 cores of 2: both go at two thirds of their speed.
        (2, [(0, 2.0, 1), (0, 2.0, 2)], [3.0, 3.0]),
    ],
)
def test_work_shares_the_cores_that_there_are(cores, works, ends):
    model = MachineModel() if cores is None else MachineModel(cores=cores)
    assert ends_on(model, *works) == pytest.approx(ends)


def test_busy_cores_slow_each_other_down_as_measured():
    model = MachineModel(cores=4, beside=0.8, measured=2)
    assert model.speed(1) == 1.0
    assert model.speed(2) == model.speed(4) == pytest.approx(0.8)
    assert model.speed(8) == pytest.approx(0.4)


SMALL, CACHED = Sample(50, 0.25, 0.0, 50), Sample(1000, 0.5, 0.0, 0)


@pytest.mark.parametrize(
    ("storage", "batches", "ends"),
    [
        # Reads end at 0.5, 1, 1.5 and 2, each 0.25 before its sample is made.
        (Storage(100.0), [[SMALL, SMALL]] * 2, [1.75, 2.25]),
        # Latencies of several readers overlap.
        (Storage(1e9, latency=1.0), [[Sample(0, 0.0, 0.0, 1)]] * 3, [1.0, 1.0, 1.0]),
        # A worker that waited takes a while to run again; the storage goes on meanwhile.
        (Storage(100.0, wake=0.125), [[SMALL]] * 2, [0.875, 1.375]),
        # What is cached does not wait.
        (Storage(1.0), [[CACHED]], [0.5]),
    ],
)
def test_files_come_from_storage_one_after_the_other(storage, batches, ends):
    engine, found = Engine(), []
    machine = SimulatedMachine(engine, MachineModel(storage=storage))
    for samples in batches:
        machine.make(samples, lambda: found.append(engine.now))
    engine.run()
    assert found == pytest.approx(ends)

"""Simulated time and the shared device."""

import pytest

from fusionloader.cli.simulator.engine import Engine, SimulatedDevice, Tenant


def test_actions_happen_in_the_order_of_their_moments():
    engine, seen = Engine(), []
    engine.after(2.0, lambda: seen.append(("late", engine.now)))
    engine.after(1.0, lambda: engine.after(0.5, lambda: seen.append(("inner", engine.now))))
    engine.after(1.5, lambda: seen.append(("tie", engine.now)))
    engine.run()
    assert seen == [("tie", 1.5), ("inner", 1.5), ("late", 2.0)]


def test_it_stops_when_told_that_it_is_enough():
    engine, seen = Engine(), []
    for moment in range(5):
        engine.after(float(moment), lambda: seen.append(engine.now))
    engine.run(done=lambda: len(seen) == 3)
    assert seen == [0.0, 1.0, 2.0]


def test_nothing_happens_in_the_past():
    with pytest.raises(ValueError, match="cannot be planned"):
        Engine().after(-1.0, lambda: None)


def shared_device():
    engine = Engine()
    return engine, SimulatedDevice(engine, {Tenant.TRAINING: 0.5, Tenant.WORKER: 0.25})


def test_work_alone_runs_at_full_speed():
    engine, device = shared_device()
    ends = []
    device.start(Tenant.TRAINING, 3.0, lambda: ends.append(engine.now))
    assert device.busy(Tenant.TRAINING) and not device.busy(Tenant.WORKER)
    engine.run()
    assert ends == [3.0]
    assert not device.busy(Tenant.TRAINING)


def test_both_are_slower_while_both_are_at_work():
    engine, device = shared_device()
    ends = {}
    device.start(Tenant.TRAINING, 3.0, lambda: ends.update(training=engine.now))
    end = lambda: ends.update(worker=engine.now)  # noqa: E731
    engine.after(1.0, lambda: device.start(Tenant.WORKER, 0.5, end))
    engine.run()
    # Beside each other from 1 to 3: the worker does 2 x 0.25, training 2 x 0.5 of its last 2.
    assert ends == {"worker": pytest.approx(3.0), "training": pytest.approx(4.0)}


def test_a_tenant_has_one_piece_of_work_at_a_time():
    _, device = shared_device()
    device.start(Tenant.WORKER, 1.0, lambda: None)
    with pytest.raises(RuntimeError, match="already"):
        device.start(Tenant.WORKER, 1.0, lambda: None)

"""Whether a GPU worker that could not be built, or was killed, is started again."""

import contextlib
import signal
import warnings
from types import SimpleNamespace

import pytest
from support.waiting import wait_until

from fusionloader.engine.manager.participant import Hub
from fusionloader.gpu import worker
from fusionloader.gpu.control import GpuControl
from fusionloader.gpu.start import GpuOptions

WORKERS = 2
GPU = WORKERS - 1


class Ended:
    """A process that has ended."""

    pid = 1

    def __init__(self, exitcode):
        self.exitcode = exitcode

    def is_alive(self):
        return False

    def join(self, timeout=None):
        pass


@pytest.mark.parametrize(
    ("error", "restarts"),
    [
        (MemoryError("no memory on the device"), 3),
        (RuntimeError("CUDA error: out of memory"), 3),
        (RuntimeError("the memory of this device cannot be mapped"), 0),
        (ImportError("nvidia.dali"), 0),
        (None, 3),
    ],
)
def test_a_death_and_a_shortage_of_memory_are_tried_again(
    make_control_block, monkeypatch, error, restarts
):
    launches = []

    def fail(*_):
        raise error

    def start(shared, number, message_fd, most):
        launches.append(most)
        if error is None:
            return Ended(-signal.SIGKILL)
        config = SimpleNamespace(
            parent=0,
            control_fd=shared.control_fd,
            data_fd=shared.data_fd,
            worker=number,
            message_fd=message_fd,
        )
        with contextlib.suppress(SystemExit):
            worker.main(config)
        return Ended(1)

    monkeypatch.setattr(worker, "GpuWorkerLoop", fail)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    block = make_control_block(WORKERS)
    options = GpuOptions(start, 64, "spatial", lambda: lambda: True, 0)
    control = GpuControl(options)
    control.first = GPU
    control.start(Hub(block.manager, block.control_fd, block.arena.fd, 1, 1))

    def given_up():
        control.look(list, list)
        return control.given_up is not None

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        wait_until(given_up)
    assert control.restarts == restarts
    assert launches == [64, 32, 16, 8][: restarts + 1]
    assert str(error or "killed by signal") in control.given_up
    assert len(said) == restarts + 1
    assert control.processes == []
    control.end()

"""Whether a GPU worker that could not be built is started again."""

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

    pid, exitcode = 1, 1

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
    ],
)
def test_only_a_shortage_of_memory_is_tried_again(make_control_block, monkeypatch, error, restarts):
    launches = []

    def fail(*_):
        raise error

    def start(shared, number, message_fd, most):
        launches.append(most)
        config = SimpleNamespace(
            parent=0,
            control_fd=shared.control_fd,
            data_fd=shared.data_fd,
            worker=number,
            message_fd=message_fd,
        )
        with contextlib.suppress(SystemExit):
            worker.main(config)
        return Ended()

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
    assert str(error) in control.given_up
    assert len(said) == restarts + 1
    assert control.processes == []
    control.end()

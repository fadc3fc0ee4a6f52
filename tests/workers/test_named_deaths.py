"""An error in fetching from a worker is the worker's death, if that is why."""

import multiprocessing
import signal

import pytest
from support.waiting import PATIENCE

from fusionloader.system.processes import named_death

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def worker():
    process = FORK.Process(target=signal.pause)
    process.start()
    yield process
    process.kill()
    process.join(PATIENCE)


@pytest.mark.parametrize("error", [EOFError, ConnectionResetError, ConnectionRefusedError])
def test_connections_that_close_before_their_process_ends_name_it(worker, error):
    reported = rf"DataLoader worker \(pid\(s\) {worker.pid}\) exited unexpectedly"
    with pytest.raises(RuntimeError, match=reported) as caught, named_death([worker]):
        worker.kill()  # and nobody waits until it has ended
        raise error
    assert isinstance(caught.value.__cause__, error)


def test_other_errors_and_those_of_living_workers_are_raised_as_they_are(worker, monkeypatch):
    monkeypatch.setattr("fusionloader.system.processes._DYING_SECONDS", 0.01)
    with pytest.raises(EOFError), named_death([worker]):
        raise EOFError
    with pytest.raises(KeyError), named_death([worker]):
        raise KeyError

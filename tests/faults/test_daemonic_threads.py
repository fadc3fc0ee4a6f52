"""Daemonic threads that use loaders while the process ends: it ends by itself, and at once."""

import pytest
from support import warm_start

WAIT = """
import threading, time
from fusionloader import _native
from fusionloader.system.shm import objects

control = objects.create(_native.ManagerQueue.control_bytes(1, 4))
data = objects.create(1 << 20)
queue = _native.ManagerQueue(control, data, 1, 4)

def wait():
    while True:
        queue.sleep(queue.done_word(), 0.01)

for _ in range(4):
    threading.Thread(target=wait, daemon=True).start()
time.sleep(0.05)
"""


@pytest.mark.parametrize("run", range(3))
@pytest.mark.few(1)
def test_a_thread_that_waits_natively_does_not_abort_the_end(run):
    done = warm_start.completed("-c", WAIT)
    assert (done.returncode, done.stderr) == (0, "")

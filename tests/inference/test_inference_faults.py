"""Workers that die or stop, forks, and ends of the process: nothing is lost, nothing is left."""

import ctypes
import gc
import os
import resource
import signal
from pathlib import Path

import psutil
import pytest
import torch
from support import commanding_format, warm_start
from support.encoded_images import expected
from support.images import eval_transform
from support.limits import limited
from support.waiting import gone, is_stopped, left_behind, wait_until

from fusionloader.addons.inference import BadImage, Preprocessor
from fusionloader.workers.messages import Failure

TESTS = Path(__file__).parents[1]


def pids(prepare):
    return [worker.pid for worker in prepare.stats().workers]


def all_expected(images):
    return [expected(eval_transform(), image) for image in images]


def test_an_image_whose_worker_is_killed_is_prepared_by_another(make, jpegs, gate):
    prepare = make(num_workers=1)
    futures = [prepare.submit(gate.image), *map(prepare.submit, jpegs)]
    gate.wait_until_begun()
    (pid,) = pids(prepare)
    gate.open()
    os.kill(pid, signal.SIGKILL)
    assert all(map(torch.equal, [f.result() for f in futures[1:]], all_expected(jpegs)))
    assert torch.is_tensor(futures[0].result())
    wait_until(lambda: prepare.stats().worker_restarts == 1)


def test_a_list_outlives_workers_that_are_killed(make, jpegs, gate):
    prepare = make(num_workers=2)
    waiting = prepare.submit(gate.image)
    gate.wait_until_begun()
    for pid in pids(prepare):
        os.kill(pid, signal.SIGKILL)
    assert torch.equal(prepare(jpegs * 3), torch.stack(all_expected(jpegs * 3)))
    gate.open()
    assert torch.is_tensor(waiting.result())


def test_an_image_on_which_three_workers_die_fails_alone(make, jpegs, gate):
    prepare = make()
    images = [jpegs[0], commanding_format.ends_its_worker(), jpegs[1]]
    futures = [prepare.submit(image, key=key) for key, image in enumerate(images)]
    error = futures.pop(1).exception()
    assert isinstance(error, BadImage) and isinstance(error, RuntimeError)
    assert "one of these is the cause: the image with key 1" in str(error)
    assert all(map(torch.equal, [f.result() for f in futures], all_expected(jpegs[:2])))
    with pytest.raises(BadImage, match="image 1 of the list.*3 workers died"):
        prepare(images)
    assert torch.equal(prepare(jpegs), torch.stack(all_expected(jpegs)))


def test_a_worker_that_is_stopped_goes_on_where_it_was(make, jpegs):
    prepare = make(num_workers=1)
    prepare(jpegs[:1])
    (pid,) = pids(prepare)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: is_stopped(pid))
    futures = [prepare.submit(image) for image in jpegs]
    assert not any(future.done() for future in futures)
    os.kill(pid, signal.SIGCONT)
    assert all(map(torch.equal, [f.result() for f in futures], all_expected(jpegs)))


def test_an_image_that_a_stopped_worker_has_left_out_is_found(make, jpegs, gate):
    """A worker stopped between the two steps of a claim: the queue word has moved on, alone."""
    prepare = make(num_workers=1)
    first = prepare.submit(gate.image)
    gate.wait_until_begun()  # so the worker claims nothing now
    left_out = prepare.submit(jpegs[0])
    (*_, job) = prepare._queue._jobs
    word = ctypes.c_uint64.from_address(job.descriptor.address)
    head, tail = word.value & 0xFFFFF, word.value >> 20 & 0xFFFFF
    assert (head, tail) == (0, 1)
    word.value &= ~(0xFFFFF << 20)
    gate.open()
    assert torch.equal(left_out.result(), all_expected(jpegs[:1])[0])
    assert torch.is_tensor(first.result())


def test_an_image_that_takes_longer_than_the_timeout_fails_alone(make, jpegs, gate):
    prepare = make(num_workers=1, timeout="2s")
    first = prepare.submit(gate.image, key=5)
    after = [prepare.submit(image) for image in jpegs[:3]]
    error = first.exception()
    assert isinstance(error, BadImage) and isinstance(error, TimeoutError)
    assert "key 5, took more than 2.0 s" in str(error)
    assert all(map(torch.equal, [f.result() for f in after], all_expected(jpegs[:3])))


def test_a_fork_is_told_to_make_its_own(make, jpegs):
    prepare = make()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:  # nothing of the test's may run here
        said = "nothing"
        try:
            prepare.submit(jpegs[0])
        except RuntimeError as error:
            said = str(error)
        prepare.close()
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with os.fdopen(read) as pipe:
        assert "make one in each process, after the fork" in pipe.read()
    assert torch.equal(prepare.submit(jpegs[0]).result(), all_expected(jpegs[:1])[0])


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_may_be_started_as_multiprocessing_does(make, jpegs, method):
    prepare = make(multiprocessing_context=method)
    assert torch.equal(prepare(jpegs), torch.stack(all_expected(jpegs)))


def test_nothing_is_left_when_it_is_closed_or_forgotten(jpegs):
    def use(end):
        prepare = Preprocessor(eval_transform(), num_workers=2)
        prepare(jpegs)
        prepare.submit(jpegs[0]).result()
        workers = pids(prepare)
        end(prepare)
        del prepare
        gc.collect()
        wait_until(lambda: all(map(gone, workers)))

    others = left_behind()  # what processes of other tests still have
    use(Preprocessor.close)
    before = open_files(), psutil.Process().num_threads()
    use(Preprocessor.close)
    use(lambda prepare: None)
    wait_until(lambda: psutil.Process().num_threads() <= before[1])
    wait_until(lambda: open_files() <= before[0])
    assert left_behind() <= others


def open_files():
    return len(os.listdir("/proc/self/fd"))


ENDS = {
    "queued": "futures = [prepare.submit(image) for _ in range(200)]",
    "in a model": "futures = [prepare.submit(image) for _ in range(8)]; asked.wait(60)",
    "exception": "raise SystemExit(3)",
}
SCRIPT = """
import io, os, sys, threading
from PIL import Image
from support.images import eval_transform
from support.limits import limited
from fusionloader.addons.inference import Preprocessor

file = io.BytesIO()
Image.new("RGB", (300, 300)).save(file, "JPEG")
image = file.getvalue()
asked = threading.Event()

def endless(batch):
    asked.set()
    threading.Event().wait()

prepare = Preprocessor(eval_transform(), num_workers=2, infer=endless if {model} else None)
while len(prepare.stats().workers) < 2:  # until both have begun
    prepare([image] * 8)
print(*(worker.pid for worker in prepare.stats().workers), flush=True)
{end}
"""


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.few(2)
def test_the_process_ends_and_its_workers_with_it(end):
    code = SCRIPT.format(end=ENDS[end], model=end == "in a model")
    env = os.environ | {"PYTHONPATH": f"{TESTS}:{TESTS.parent}"}
    done = warm_start.completed("-c", code, env=env)
    assert done.returncode == (3 if end == "exception" else 0), done.stderr
    assert "Traceback" not in done.stderr and "terminate" not in done.stderr
    workers = [int(pid) for pid in done.stdout.split()]
    assert len(workers) == 2
    wait_until(lambda: all(map(gone, workers)))


def test_memory_of_a_burst_is_given_back(make, jpegs):
    prepare = make(max_queued=64)
    prepare(jpegs * 20)
    large = jpegs[0] + bytes(4 << 20)
    for future in [prepare.submit(large) for _ in range(32)]:
        future.result()
    assert prepare.stats().shared_memory_bytes > 32 << 20
    wait_until(lambda: prepare.stats().shared_memory_bytes < 4 << 20)
    assert torch.equal(prepare(jpegs), torch.stack(all_expected(jpegs)))


def test_a_worker_that_cannot_be_replaced_now_is_replaced_later(make, jpegs, caplog):
    prepare = make(num_workers=1)
    prepare(jpegs[:1])
    (pid,) = pids(prepare)
    with limited(resource.RLIMIT_NOFILE, 3):
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: "cannot be replaced now, but later" in caplog.text)
        futures = [prepare.submit(image) for image in jpegs[:3]]
    assert all(map(torch.equal, [f.result() for f in futures], all_expected(jpegs[:3])))


def test_a_failure_that_a_worker_reported_before_it_died_is_void_once_the_image_is_done(
    make, jpegs, gate
):
    prepare = make(num_workers=1)
    future = prepare.submit(gate.image)
    gate.wait_until_begun()
    (job,) = prepare._queue._jobs
    job.failures[0] = Failure(None, "the file could not be read for a moment", 0)
    os.kill(pids(prepare)[0], signal.SIGKILL)
    gate.open()
    assert torch.is_tensor(future.result())


def test_a_failure_that_is_not_reported_is_that_of_its_image_alone(make, jpegs, monkeypatch):
    prepare = make()
    monkeypatch.setattr(prepare._queue, "_note", lambda message: None)
    futures = [prepare.submit(image, key=7) for image in (jpegs[0], b"bad", jpegs[1])]
    error = futures.pop(1).exception()
    assert isinstance(error, BadImage) and "has failed at an image, key 7" in str(error)
    assert all(map(torch.equal, [f.result() for f in futures], all_expected(jpegs[:2])))
    with pytest.raises(BadImage, match="image 1 of the list"):
        prepare([jpegs[0], b"bad"])

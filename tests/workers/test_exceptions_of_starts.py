"""An exception while a process is started or forked: nothing stays open, locked or blocked."""

import contextlib
import gc
import itertools
import multiprocessing
import os
import signal
import threading

import psutil
import pytest
from support.campaigns import SEED, examples
from support.raised_at import CALLS, Steps, sampled

from fusionloader.system import processes, training_signals
from fusionloader.workers.worker_set import WorkerSet

EVENTS = (*CALLS, "c_return")


def test_no_descriptor_stays_open_whatever_is_raised_where_they_are_counted():
    left = {}
    steps = Steps("system/processes.py", events=EVENTS)
    for position in range(steps.count(processes._check_descriptors)):
        before = os.listdir("/proc/self/fd")
        with contextlib.suppress(KeyboardInterrupt):
            steps.raise_at(position, KeyboardInterrupt(), processes._check_descriptors)
        if (after := os.listdir("/proc/self/fd")) != before:
            left[steps.place] = after
    assert not left


def test_no_signal_stays_blocked_whatever_is_raised_where_they_are_held_back():
    """No process that training starts from then on could be ended by SIGTERM."""
    blocked = {}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())

    def hold_back():
        with training_signals.held_back():
            pass

    steps = Steps("system/training_signals.py", events=EVENTS)
    for position in range(steps.count(hold_back)):
        with contextlib.suppress(KeyboardInterrupt):
            steps.raise_at(position, KeyboardInterrupt(), hold_back)
        if left := signal.pthread_sigmask(signal.SIG_SETMASK, before) - before:
            blocked[steps.place] = left
    assert not blocked


@pytest.mark.properties
def test_no_process_waits_for_its_argument_whatever_is_raised_while_it_is_started():
    """It would wait for ever: its launcher keeps the pipe open that it reads from."""
    left, begun = {}, []

    def begin():
        begun.append(processes.BareProcess("gc", None, ()))

    def children():
        return set(psutil.Process().children())

    steps = Steps("system/processes.py", events=EVENTS)
    count = steps.count(begin)
    gc.collect()  # what other tests have left
    for position in sampled(count, examples(16, count), SEED):
        earlier, opened = children(), len(os.listdir("/proc/self/fd"))
        with contextlib.suppress(MemoryError):
            steps.raise_at(position, MemoryError(), begin)
        gc.collect()
        for each in begun:
            each.kill()
            each.join()
        begun.clear()
        if (more := children() - earlier) or len(os.listdir("/proc/self/fd")) > opened:
            left[steps.place] = more
    assert not left


def find_target(fd):
    """Returns what an open file is, "" if it is closed."""
    with contextlib.suppress(FileNotFoundError):
        return os.readlink(f"/proc/self/fd/{fd}")
    return ""


@pytest.mark.parametrize("is_handed_over", [False, True])
def test_each_end_of_a_pipe_is_closed_once_whatever_is_raised_where_a_worker_is_started(
    is_handed_over,
):
    """Closed twice, it could be a file that another thread has opened in between."""

    def start(number, write):
        process = multiprocessing.get_context("fork").Process(target=signal.pause)
        process.start()
        pipes.add(find_target(write))
        return process

    hand_over = (lambda number, read: None) if is_handed_over else None
    left, pipes = {}, set()
    start(0, 0).kill()  # multiprocessing opens files once
    # Not before calls of C functions, where Python raises nothing, such as that of close().
    steps = Steps("workers/worker_set.py", "workers/messages.py", events=("call", "c_return"))
    for position in itertools.count():
        before = set(os.listdir("/proc/self/fd"))
        pipes.clear()
        workers = WorkerSet(0, start, 0, hand_over)
        with contextlib.suppress(KeyboardInterrupt):  # and no OSError of a second close
            steps.raise_at(position, KeyboardInterrupt(), lambda workers=workers: workers.add(0))
        if steps.place is None:
            break
        for worker in workers.workers:
            worker.process.kill()
        workers.end()
        gc.collect()
        more = set(os.listdir("/proc/self/fd")) - before
        if pipes:  # a process was started, and files of its object may be open
            more = {fd for fd in more if find_target(fd) in pipes}
        if more and not steps.place.endswith("c_return pipe"):  # which nobody knows
            left[steps.place] = more
    workers.workers[0].process.kill()
    workers.end()
    assert not left and position > 5


def fork():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def is_free(lock):
    found = []

    def take():
        found.append(lock.acquire(timeout=1))
        if found[0]:
            lock.release()

    other = threading.Thread(target=take)
    other.start()
    other.join()
    return found[0]


# What is raised in a hook of a fork is shown, and ends the hook alone.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_lock_is_kept_whatever_is_raised_in_a_fork():
    kept = []
    steps = Steps("system/processes.py", events=EVENTS)
    for position in range(steps.count(fork)):
        with contextlib.suppress(KeyboardInterrupt):
            steps.raise_at(position, KeyboardInterrupt(), fork)
        if not is_free(processes._forking.lock):
            kept.append(steps.place)
            processes._forking.lock = threading.RLock()
    assert not kept

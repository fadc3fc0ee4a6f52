"""Loaders in threads, in workers of pools, and in daemonic processes."""

import contextlib
import multiprocessing
import os
import re
import signal
import sys
import threading
from pathlib import Path

import psutil
import pytest
import torch
from served import complete, run
from support.campaigns import ENDS, SEED
from support.waiting import PATIENCE, gone, wait_until, wait_until_nothing_is_left
from torch.utils.data import TensorDataset

from fusionloader import FusionLoader
from fusionloader.system.processes import renewed_in_children

BEGIN = """
import multiprocessing, os, sys, threading
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from served import KINDS, loader, samples

root = sys.argv[1]

def epochs(kind, method="fork"):
    with loader(kind, root, multiprocessing_context=method) as made:
        return [samples(made), samples(made)]

def attempt(kind, method="fork"):
    try:
        return epochs(kind, method)
    except AssertionError as error:
        return str(error)
"""


def test_threads_have_loaders_of_their_own(image_folder):
    script = """
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(epochs, [*KINDS, KINDS[1]])) == [[40, 40]] * 4
    print("all")
    """
    assert run(script, image_folder, begin=BEGIN) == ["all"]


FIRST_CALLS = """
import torch

def note(frame, event, function):
    if event == "c_call":
        owner = getattr(function, "__self__", None)
        if isinstance(owner, torch.Tensor) or owner is torch._C._VariableFunctions:
            calls.setdefault(function.__name__, len(forks))

def called_late(made):
    threading.setprofile(note)
    sys.setprofile(note)
    len(torch.zeros(1))  # as samples() calls it
    assert samples(made) == 40
    sys.setprofile(None)
    assert len(forks) == 2
    return [name for name, earlier_forks in calls.items() if earlier_forks]

calls, forks = {}, []
os.register_at_fork(before=lambda: forks.append(1), after_in_child=lambda: sys.setprofile(None))
"""


def test_deliveries_call_nothing_of_torch_for_the_first_time(image_folder):
    """A worker that another thread forks meanwhile would wait for ever when it calls the same."""
    script = """
    loaders = [loader(kind, root) for kind in ("rows", "stream")]
    for made in loaders:
        pid = os.fork()
        forks.clear()
        if pid == 0:
            print(*called_late(made), flush=True)
            made.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    print("all")
    """
    assert run(script, image_folder, begin=BEGIN + FIRST_CALLS) == ["all"]


def test_threads_that_share_an_iterator_have_each_batch_once(image_folder):
    script = """
    def take(iterator, taken):
        taken += [targets.tolist() for _, targets in iterator]

    for kind in KINDS:
        with loader(kind, root) as made:
            expected = sorted(targets.tolist() for _, targets in made)
            iterator, taken = iter(made), []
            threads = [threading.Thread(target=take, args=(iterator, taken)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(taken) == expected, (kind, taken)
    print("all")
    """
    assert run(script, image_folder, begin=BEGIN) == ["all"]


def test_an_iterator_without_workers_goes_on_in_a_forked_child():
    iterator = iter(FusionLoader(TensorDataset(torch.arange(6)), 2))
    next(iterator)
    child = os.fork()
    if child == 0:
        os._exit(next(iterator)[0].tolist() != [2, 3])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert next(iterator)[0].tolist() == [2, 3]


def test_a_forked_child_finds_a_lock_free_that_another_thread_has():
    lock, taken, done = renewed_in_children(threading.RLock()), threading.Event(), threading.Event()

    def hold():
        with lock:
            taken.set()
            done.wait()

    def status(child):
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    if (child := os.fork()) == 0:
        os._exit(not lock.acquire(timeout=PATIENCE))
    done.set()
    thread.join()
    assert status(child) == 0
    lock.acquire()
    if (child := os.fork()) == 0:
        lock.release()  # it is the forking thread's
        os._exit(0)
    assert status(child) == 0


def test_a_loader_outlives_the_thread_that_began_it(image_folder):
    script = """
    def start(kind, started):
        made = loader(kind, root)
        iterator = iter(made)
        started.append((made, iterator, samples([next(iterator)])))

    for kind in KINDS:
        started = []
        thread = threading.Thread(target=start, args=(kind, started))
        thread.start()
        thread.join()
        made, iterator, found = started.pop()
        assert found + samples(iterator) == samples(made) == 40, kind
    print("all")
    """
    assert run(script, image_folder, begin=BEGIN) == ["all"]


ABORT = " abort + "  # among the frames of a thread that aborts
DAEMONIC = """
import itertools, random, time, torch

def use(seed):
    draws = random.Random(seed)
    for count in itertools.count():
        made = loader(draws.choice(KINDS), root, persistent_workers=draws.random() < 0.5)
        for number, _ in zip(range(draws.randrange(1, 15)), made):
            if count == number == 0:
                began.wait()
        del made

torch._C._set_print_stack_traces_on_fatal_signal(True)
threading.excepthook = lambda caught: None  # as torch's, it is told that workers have ended
for kind in KINDS:
    samples(loader(kind, root))  # whatever is imported calls torch as well
draws, began = random.Random(sys.argv[2]), threading.Barrier(4)
for _ in range(3):
    threading.Thread(target=use, args=(draws.random(),), daemon=True).start()
began.wait()
time.sleep(draws.uniform(0, 0.3))
print(os.getpid())
"""


@pytest.mark.parametrize("seed", range(SEED, SEED + max(ENDS, 3)))
def test_a_process_ends_while_daemonic_threads_make_and_drop_loaders(image_folder, seed):
    done = complete(DAEMONIC, image_folder, seed, begin=BEGIN)
    pid = int(done.stdout)
    wait_until(lambda: not session(pid), "workers are left")
    wait_until_nothing_is_left(pid)
    if done.returncode in (0, -signal.SIGABRT) and "terminate called" in done.stderr:
        library = ended_in(done.stderr)
        if "/torch/" in library:
            pytest.xfail("torch's own code has ended the process")
        if not library and (done.returncode == 0 or ABORT not in done.stderr):
            pytest.xfail("the process ended before the abort of a thread said where it was")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 3), reason="these forked nothing in functions of atexit"
)
def test_when_python_exits_its_own_thread_alone_begins_epochs(image_folder):
    script = """
    from fusionloader import FusionLoader

    def iterate(workers):
        try:
            return samples(loader("rows", root, num_workers=workers, persistent_workers=False))
        except RuntimeError as error:
            return str(error).split(":")[0]

    def wait():
        exits.wait()
        print("thread", *map(iterate, (0, 2)))

    def end():
        exits.set()
        thread.join()
        print("main", *map(iterate, (0, 2)))

    exits, thread = threading.Event(), threading.Thread(target=wait, daemon=True)
    thread.start()
    """
    before = "import atexit\natexit.register(lambda: end())\n"  # and so after the loader's
    said = run(script, image_folder, begin=before + BEGIN)
    assert " ".join(said) == "thread Python exits Python exits main 40 40"


def session(leader):
    """The processes of a script's session, without those that have ended."""
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == leader and not gone(pid):
                found.append(pid)
    return found


def ended_in(complaints):
    """Returns the library in which a thread was ended that wanted the GIL while Python exits.

    Before Python 3.14 this unwinds its frames, and one that is noexcept aborts the process.
    """
    _, _, frames = complaints.partition(ABORT)  # the others' threads have none
    _, _, unwound = frames.partition("pthread_exit")
    libraries = [Path(each) for each in re.findall(r" in (\S+)\)$", unwound, re.MULTILINE)[1:]]
    own = (each for each in libraries if not each.name.startswith(("python", "libpython")))
    return next(map(str, own), "")


def test_workers_of_executors_have_loaders(image_folder):
    script = """
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("fork")) as processes:
        assert list(processes.map(epochs, KINDS)) == [[40, 40]] * 3
    print("all")
    """
    assert run(script, image_folder, begin=BEGIN) == ["all"]


def test_daemonic_processes_start_bare_interpreters_alone(image_folder):
    script = """
    refused = "daemonic processes are not allowed to have children"  # as torch's
    with multiprocessing.get_context("fork").Pool(2) as processes:
        assert processes.map(attempt, KINDS) == [refused] * 3
        assert processes.apply(attempt, (KINDS[0], "spawn")) == [40, 40]
    print("all")
    """
    assert run(script, image_folder, begin=BEGIN) == ["all"]


class ThreadContext(multiprocessing.context.SpawnContext):
    """As of MONAI's ThreadDataLoader with ``use_thread_workers``."""

    Process = threading.Thread


@pytest.mark.parametrize("collate", [None, list], ids=["samples", "batches"])
def test_a_context_that_starts_threads_is_refused(collate):
    loader = FusionLoader(range(4), 2, num_workers=1, collate_fn=collate)
    loader.multiprocessing_context = ThreadContext()
    before = threading.active_count(), psutil.Process().children()
    with pytest.raises(ValueError, match="starts threads.*'spawn'"):
        iter(loader)
    assert (threading.active_count(), psutil.Process().children()) == before

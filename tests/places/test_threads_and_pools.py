"""Loaders in threads, in workers of pools, and in daemonic processes."""

from served import run

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


def test_a_process_ends_while_a_daemonic_thread_iterates(image_folder):
    script = """
    began = threading.Event()

    def iterate(kind):
        made = loader(kind, root)
        while True:
            for _ in made:
                began.set()

    threading.excepthook = lambda caught: None  # as torch's, it is told that workers have ended
    threading.Thread(target=iterate, args=(sys.argv[2],), daemon=True).start()
    began.wait()
    print("ends")
    """
    for kind in ("plan", "rows"):
        assert run(script, image_folder, kind, begin=BEGIN) == ["ends"]


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

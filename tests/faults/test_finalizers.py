"""What is called when an object is collected, and when Python exits."""

import os
import threading

from support import warm_start

from fusionloader.system.finalizers import ExitFinalizer, Finalizer

AT_EXIT = """
import functools, os
from fusionloader.system.finalizers import ExitFinalizer, Finalizer

say = functools.partial(print, flush=True)  # the child has a copy of what is not yet written

class Owner:
    pass

def fail():
    say("fails")
    raise ZeroDivisionError

def add():
    say("adds")
    ExitFinalizer(owner, say, "added")

def add_for_ever():
    ExitFinalizer(owner, add_for_ever)

owner, collected = Owner(), Owner()
ExitFinalizer(owner, say, "oldest")
ExitFinalizer(owner, add_for_ever)
ExitFinalizer(owner, add)
ExitFinalizer(owner, fail)
ExitFinalizer(owner, say, "detached").detach()
ExitFinalizer(collected, say, "collected")
Finalizer(owner, say, "not at exit")
del collected
if child := os.fork():
    os.waitpid(child, 0)
    say("exits")
else:
    say("child")
"""


class Owner:
    pass


def test_at_exit_functions_are_called_newest_first_and_not_in_a_forked_child():
    done = warm_start.completed("-c", AT_EXIT)
    said = ["collected", "child", "exits", "fails", "adds", "oldest", "added"]
    assert done.stdout.splitlines() == said
    assert done.returncode == 0
    assert done.stderr.count("Traceback") == done.stderr.count("ZeroDivisionError") == 1


def test_of_threads_that_call_a_finalizer_one_calls_its_function():
    called, owner, start = [], Owner(), threading.Barrier(4)
    finalizers = [Finalizer(owner, called.append, number) for number in range(200)]

    def call():
        start.wait()
        for finalizer in finalizers:
            finalizer()

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    start.wait()
    ExitFinalizer(owner, called.append, 200)
    del owner
    for thread in threads:
        thread.join()
    assert sorted(called) == list(range(201))


def test_a_child_calls_what_is_to_be_called_in_any_process_when_it_drops_an_owner():
    reading, writing = os.pipe()
    owner = Owner()
    Finalizer(owner, os.write, writing, b"any")
    ExitFinalizer(owner, os.write, writing, b"first process")
    if child := os.fork():
        os.waitpid(child, 0)
    else:
        del owner
        os._exit(0)
    assert os.read(reading, 100) == b"any"
    del owner
    assert os.read(reading, 100) == b"first processany"
    os.close(reading), os.close(writing)

"""Training scripts that end in every way, and what is left of a process then."""

import signal
import sys
import time
from pathlib import Path

from support import warm_start
from support.waiting import gone, wait_until, wait_until_nothing_is_left

HERE = Path(__file__).parent
PATH = [str(folder) for folder in (HERE.parents[1], HERE.parent, HERE)]


def end(iterator):
    """Ends a script as its first argument says, once two workers have begun."""
    # A shell's jobs in the background ignore it, and so does what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    how = sys.argv[1]
    print(*[process.pid for process in iterator._workers], flush=True)
    if how == "exception":
        raise ZeroDivisionError
    if how == "exit":
        sys.exit(0)
    while True:
        time.sleep(1)


def assert_nothing_is_left_of(folder, script, how, *arguments):
    """Runs a script that calls ``end``, ends it, and sees that nothing is left.

    Args:
        folder: to write the script to.
        script: its text.
        how: a signal's name, or "exception" or "exit".
        arguments: further ones of the script.
    """
    file = folder / "train.py"
    file.write_text(script)
    process = warm_start.start(file, how, *arguments, path=PATH)
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 2
    if how.startswith("SIG"):
        process.send_signal(getattr(signal, how))
    wait_until(lambda: process.poll() is not None and all(map(gone, pids)))
    wait_until_nothing_is_left(process.pid)

"""What commands show while they work: nothing for a moment, then a bar, or a line now and then."""

import io
from contextlib import redirect_stderr

import pytest
import tqdm.std
from support.fake_cuda import run_program
from support.waiting import wait_until

from fusionloader.cli import progress
from fusionloader.cli.progress import Progress, elapsed


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "monotonic", clock)
    monkeypatch.setattr(tqdm.std, "time", clock)
    return clock


on_both = pytest.mark.parametrize("kind", [io.StringIO, Terminal], ids=["a file", "a terminal"])


@on_both
def test_what_is_over_soon_shows_nothing(clock, kind):
    with redirect_stderr(kind()) as stderr, Progress("painting", 4) as shown:
        for _ in range(4):
            shown.advance()
            clock.now += 0.49
    assert stderr.getvalue() == ""


@on_both
def test_what_takes_longer_shows_how_far_it_has_come(clock, kind):
    with redirect_stderr(kind()) as stderr, Progress("painting", 40) as shown:
        for _ in range(10):
            clock.now += 0.3
            shown.advance(note="loss 0.5")
        said = stderr.getvalue()
    assert "painting" in said and "40" in said and "loss 0.5" in said


def test_in_a_file_a_line_comes_every_few_seconds(clock):
    with redirect_stderr(io.StringIO()) as stderr, Progress("painting", 120) as shown:
        for _ in range(120):
            clock.now += 0.1
            shown.advance()
    assert stderr.getvalue().splitlines() == [
        "  painting: 20 of 120, 00:02 so far, 00:10 left",
        "  painting: 70 of 120, 00:07 so far, 00:05 left",
        "  painting: 120 of 120, 00:12 so far, 00:00 left",
    ]


def test_a_terminal_is_left_as_it_was(clock):
    with redirect_stderr(Terminal()) as stderr, Progress("painting", 10) as shown:
        clock.now += 3
        shown.advance(5)
    said = stderr.getvalue()
    assert "50%" in said and said.endswith("\r") and "\n" not in said


@on_both
def test_long_steps_are_shown_from_the_first(clock, kind):
    with redirect_stderr(kind()) as stderr, Progress("measuring", 3, patience=0) as shown:
        clock.now += 0.2
        shown.advance(note="torch: set-up")
    assert "torch: set-up" in stderr.getvalue()


@on_both
def test_what_cannot_be_counted_shows_that_it_runs(kind, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.001)
    with redirect_stderr(kind()) as stderr, elapsed("compiling"):
        wait_until(lambda: "compiling: 00:0" in stderr.getvalue())


def test_it_starts_no_thread_and_makes_no_semaphore():
    code = """
import threading
from fusionloader.cli.progress import Progress, _Bar
from tqdm.std import TqdmDefaultWriteLock
_Bar("painting", 3, 0).advance(1, "")
assert not hasattr(TqdmDefaultWriteLock, "mp_lock")
assert threading.active_count() == 1
"""
    done = run_program(code)
    assert done.returncode == 0 and "painting" in done.stderr, done.stderr

"""Files that user code keeps open."""

import copy
import os
import pickle
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from fusionloader.data.sources import OpenFiles


@pytest.fixture
def paths(tmp_path):
    made = [tmp_path / str(number) for number in range(6)]
    for path in made:
        path.write_text(f"in {path.name}")
    return made


def reader(most=64):
    return OpenFiles(partial(open, mode="rb"), most)


def test_a_file_is_opened_once(paths):
    files = reader()
    assert [files[path] is files[path] for path in paths] == [True] * 6
    assert len(files) == 6
    assert paths[0] in files
    assert list(files) == paths
    assert files[paths[3]].read() == b"in 3"


def test_the_file_used_least_recently_is_closed_before_another_is_opened(paths):
    seen = []

    def opened(path):
        seen.append(len(files))
        return open(path, "rb")

    files = OpenFiles(opened, most=3)
    for number in (0, 1, 2, 0, 3, 0, 4):
        files[paths[number]]
    assert [path in files for path in paths] == [True, False, False, True, True, False]
    assert seen == [0, 1, 2, 2, 2]


def test_a_handle_in_use_goes_on_after_its_file_was_closed(paths):
    files = reader(most=1)
    first = files[paths[0]]
    files[paths[1]]
    assert first.read() == b"in 0"
    assert files[paths[0]] is not first


def test_close_closes_all_and_leaves_the_object_of_use(paths):
    files = reader()
    number = files[paths[0]].fileno()
    files.close()
    assert len(files) == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    assert files[paths[0]].read() == b"in 0"


def test_a_file_that_cannot_be_opened_is_tried_again(paths):
    files = reader()
    missing = paths[0].with_name("none")
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            files[missing]
    missing.write_text("now")
    assert files[missing].read() == b"now"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_copy_has_no_file_open(paths, copied):
    files = reader(most=2)
    files[paths[0]].read()
    other = copied(files)
    assert len(other) == 0
    assert other[paths[0]].read() == b"in 0"
    assert repr(other) == repr(files)


@pytest.mark.parametrize("end", ["use", "drop"])
def test_a_forked_child_uses_and_closes_no_handle_of_its_parent(paths, end):
    class Handle:
        def __init__(self, path):
            self.pid = os.getpid()

        def __del__(self):
            if os.getpid() != self.pid:
                os._exit(1)

    files = OpenFiles(Handle)
    parents = files[paths[0]].pid
    child = os.fork()
    if child == 0:
        own = True
        if end == "use":
            own = files[paths[0]].pid == os.getpid() and len(files) == 1
            files.close()
        del files
        os._exit(0 if own else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert parents == os.getpid()
    assert len(files) == 1


def test_threads_get_one_handle_and_leave_no_more_open_than_allowed(paths):
    files, started = reader(most=4), threading.Barrier(4)

    def use(first):
        started.wait()
        asked = [paths[(first + turn) % 6] for turn in range(300)]
        return [files[path].name for path in asked] == list(map(str, asked))

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(use, range(4)))
    assert len(files) <= 4


def test_threads_that_open_a_file_at_once_get_one_handle(paths):
    both = threading.Barrier(2)

    def opened(path):
        both.wait(60)
        return object()

    files = OpenFiles(opened)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(files.__getitem__, [paths[0]] * 2)
    assert first is second is files[paths[0]]


def test_a_file_that_is_opened_with_others_leaves_no_more_open_than_allowed():
    files = OpenFiles(lambda number: (number, files[number - 1] if number else None), most=2)
    assert files[5][0] == 5
    assert len(files) == 2
    assert 5 in files


def test_a_signal_may_close_all_at_any_moment(paths):
    """Here, while the file is looked up."""

    class Signalled(str):
        def __hash__(self):
            if armed:
                signal.raise_signal(signal.SIGUSR1)
            return str.__hash__(self)

    armed, files = [], reader()
    before = signal.signal(signal.SIGUSR1, lambda *_: files.close())
    try:
        path = Signalled(paths[0])
        for _ in range(2):
            assert files[path].read() == b"in 0"
            armed.append(True)
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("count", [1, 3])
def test_half_of_the_descriptors_are_left_to_others(paths, count):
    """However many datasets keep files open."""
    script = (
        "import resource, sys\n"
        "from fusionloader.data.sources import OpenFiles\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "path, count = sys.argv[1], int(sys.argv[2])\n"
        "all = [OpenFiles(lambda number: open(path, 'rb'), most=1000) for _ in range(count)]\n"
        "unused = [OpenFiles(open) for _ in range(9)]\n"
        "for number in range(100):\n"
        "    for files in all: files[number]\n"
        "print(*map(len, all))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(paths[0]), str(count)], capture_output=True, text=True
    )
    assert ran.stdout.split() == [str(20 // count)] * count, ran.stderr


def test_fewer_than_one_file_is_refused():
    with pytest.raises(ValueError, match="most=0: at least 1 file has to be open"):
        reader(most=0)

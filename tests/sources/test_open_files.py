"""Files that user code keeps open."""

import copy
import os
import pickle
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


def test_a_forked_child_uses_and_closes_no_handle_of_its_parent(paths):
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
        own = files[paths[0]].pid == os.getpid() and len(files) == 1
        files.close()
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
    assert len(files) <= 4 + 3  # each of the other threads may be opening one


def test_half_of_the_descriptors_are_left_to_others(paths):
    script = (
        "import resource, sys\n"
        "from fusionloader.data.sources import OpenFiles\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))\n"
        "files = OpenFiles(lambda number: open(sys.argv[1], 'rb'), most=1000)\n"
        "for number in range(100): files[number]\n"
        "print(len(files))\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script, str(paths[0])], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "20\n"


def test_fewer_than_one_file_is_refused():
    with pytest.raises(ValueError, match="most=0: at least 1 file has to be open"):
        reader(most=0)

"""Containers: seccomp profiles, user namespaces, one CPU; homes and folders of read-only disks."""

import os
import platform

import pytest
from served import run

on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of system calls")

BEGIN = """
import os, sys
import confined
from served import KINDS, loader, samples

root = sys.argv[1]

def check():
    for kind, method in [(KINDS[0], "spawn"), *((kind, "fork") for kind in KINDS)]:
        made = loader(kind, root, multiprocessing_context=method)
        assert samples(made) == samples(made) == 40, kind
        made.close()
    print("all")
"""


@on_x86
@pytest.mark.parametrize(
    "profile", ["DOCKER", "MEMFD", pytest.param("STRICTER", marks=pytest.mark.matrix)]
)
def test_all_ways_work_under_a_seccomp_profile(profile, image_folder):
    script = """
    confined.refuse({**confined.DOCKER, **getattr(confined, sys.argv[2])})
    check()
    """
    assert run(script, image_folder, profile, begin=BEGIN) == ["all"]


def test_on_one_cpu_of_a_cpuset(image_folder):
    script = """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    check()
    """
    assert run(script, image_folder, begin=BEGIN) == ["all"]


def test_another_user_without_a_home_or_folders_to_write(image_folder, tmp_path):
    script = """
    from fusionloader import Cache

    try:
        confined.become_another_user(54321)
    except OSError as error:
        print("skip", *str(error).split())
        sys.exit()
    os.chdir(os.environ["TMPDIR"])
    try:
        open("file", "w")
    except PermissionError:
        check()
    made = loader("plan", root, cache=Cache("64MiB"), jpeg_index="auto")
    print(samples(made), samples(made))
    """
    read_only = tmp_path / "read-only"
    read_only.mkdir(mode=0o555)
    folders = ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR", "TMPDIR")
    environment = {"HOME": os.devnull, **dict.fromkeys(folders, str(read_only))}
    said = run(script, image_folder, begin=BEGIN, **environment)
    if said[0] == "skip":
        pytest.skip(" ".join(said[1:]))
    assert said == ["all", "40", "40"]

"""What is free: by the machine, by a control group, by the address space."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.memory_groups import memory_group, put

from fusionloader.system.limits import control_groups
from fusionloader.system.limits.free_memory import OutOfMemoryKills, free_memory

MIB = 1 << 20
TOTALS = ("MemTotal:", "SwapTotal:")
SAY = """
from fusionloader.system.limits.free_memory import free_memory
found = free_memory()
print(found.nbytes, found.limit, found.remedy, sep="\\n")
"""


def test_something_is_free_here_and_no_more_than_there_is():
    lines = Path("/proc/meminfo").read_text().splitlines()
    there = sum(int(line.split()[1]) << 10 for line in lines if line.startswith(TOTALS))
    assert 0 < free_memory().nbytes < there


@pytest.mark.parametrize(
    ("group", "files"),
    [
        (
            "0::/box\n",
            {
                "box/memory.max": "10000",
                "box/memory.current": "9000",
                "box/memory.stat": "anon 1000\nfile 7500\ninactive_file 2000\nactive_file 500\n",
            },
        ),
        (
            "4:memory:/box\n",
            {
                "memory/box/memory.limit_in_bytes": "10000",
                "memory/box/memory.usage_in_bytes": "9000",
                "memory/box/memory.stat": "cache 1\ntotal_inactive_file 2000\n"
                "total_active_file 500\n",
            },
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_what_the_kernel_keeps_of_files_is_free_and_shared_memory_is_not(tmp_path, group, files):
    put(tmp_path, groups=group)
    put(tmp_path / "fs/cgroup", **files)
    found = control_groups.memory_limit(tmp_path / "groups", tmp_path)
    assert found.left == 3500
    assert found.file.parent.name == "box"


def test_the_group_with_least_left_counts_not_the_one_with_the_lowest_limit(tmp_path):
    put(tmp_path, groups="0::/pod/box\n")
    put(
        tmp_path / "fs/cgroup",
        **{
            "pod/memory.max": "9000",
            "pod/memory.current": "8900",
            "pod/memory.stat": "inactive_file 8000\nactive_file 0\n",
            "pod/box/memory.max": "4000",
            "pod/box/memory.current": "100",
        },
    )
    found = control_groups.memory_limit(tmp_path / "groups", tmp_path)
    assert (found.most, found.left) == (4000, 3900)


@pytest.mark.parametrize(
    ("group", "name", "text"),
    [
        ("0::/pod/box\n", "memory.events", "low 0\noom 9\noom_kill {}\n"),
        ("4:memory:/pod/box\n", "memory.oom_control", "under_oom 0\noom_kill {}\n"),
    ],
)
def test_kills_for_want_of_memory_are_counted(tmp_path, group, name, text):
    put(tmp_path, groups=group)
    root = tmp_path / "fs/cgroup" / ("memory" if "memory" in group else "")
    put(root, **{f"pod/{name}": text.format(2), f"pod/box/{name}": text.format(1)})
    assert control_groups.out_of_memory_kills(tmp_path / "groups", tmp_path) == 2
    assert control_groups.out_of_memory_kills(tmp_path / "none", tmp_path) is None


def test_as_many_killed_processes_are_explained_as_there_were_kills(tmp_path, monkeypatch):
    count = control_groups.out_of_memory_kills
    name = "pod/box/memory.events"
    monkeypatch.setattr(
        control_groups, "out_of_memory_kills", lambda: count(tmp_path / "groups", tmp_path)
    )
    put(tmp_path, groups="0::/pod/box\n", **{f"fs/cgroup/{name}": "oom_kill 1\n"})
    kills = OutOfMemoryKills()
    assert not kills.explain()
    put(tmp_path / "fs/cgroup", **{name: "oom_kill 3\n"})
    assert [bool(kills.explain()) for _ in range(4)] == [True, True, False, False]


def test_the_address_space_may_be_what_is_short():
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({2048 * MIB},) * 2)\n"
    done = subprocess.run([sys.executable, "-c", limited + SAY], capture_output=True, text=True)
    nbytes, limit, remedy = done.stdout.splitlines()
    assert 0 < int(nbytes) < 2048 * MIB
    assert "RLIMIT_AS: 2,048.0 MiB" in limit and "ulimit -v unlimited" in remedy


def test_a_real_group_is_found_and_leaves_a_part_to_its_processes():
    try:
        with memory_group(320 * MIB) as group:
            done = group.run(SAY)
            nbytes, limit, remedy = done.stdout.splitlines()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    assert 100 * MIB < int(nbytes) < 310 * MIB  # less a thirty-second, and what Python has
    assert f"{group.limit_file}: 320.0 MiB, of which 10.0 MiB" in limit
    assert "--memory" in remedy and "Kubernetes" in remedy

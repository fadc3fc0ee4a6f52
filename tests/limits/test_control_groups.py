"""Limits of control groups: both versions, of the group itself and of those above it."""

import pytest
from support.memory_groups import put

from fusionloader.system.limits.control_groups import Limit, cpu_quota, memory_limit, process_limit


@pytest.mark.parametrize(
    ("groups", "files", "quota"),
    [
        ("0::/pod/box\n", {"pod/cpu.max": "250000 100000", "pod/box/cpu.max": "max 100000"}, 2.5),
        ("0::/pod/box\n", {"pod/cpu.max": "400000 100000", "pod/box/cpu.max": "50000 100000"}, 0.5),
        ("0::/\n", {"cpu.max": "300000 100000\n"}, 3.0),
        ("0::/not/here\n", {"cpu.max": "300000 100000\n"}, 3.0),
        ("0::/\n", {}, None),
        ("0::/\n", {"cpu.max": "nonsense"}, None),
        (
            "3:cpu,cpuacct:/box\n1:memory:/\n",
            {
                "cpu,cpuacct/box/cpu.cfs_quota_us": "150000",
                "cpu,cpuacct/box/cpu.cfs_period_us": "100000",
            },
            1.5,
        ),
        ("1:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_the_quota_of_a_container_is_found(tmp_path, groups, files, quota):
    put(tmp_path, groups=groups)
    put(tmp_path / "fs/cgroup", **files)
    assert cpu_quota(tmp_path / "groups", tmp_path) == quota


def test_without_control_groups_there_is_no_quota(tmp_path):
    assert cpu_quota(tmp_path / "groups", tmp_path) is None


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/\n", {"memory.max": "8000", "memory.current": "500\n"}, Limit(8000, 500)),
        ("0::/\n", {"memory.max": "max", "memory.current": "500"}, None),
        ("0::/not/here\n", {"memory.max": "8000", "memory.current": "5"}, Limit(8000, 5)),
        (
            "0::/pod/box\n",
            {
                "pod/memory.max": "9000",
                "pod/memory.current": "8000",
                "pod/box/memory.max": "4000",
                "pod/box/memory.current": "100",
            },
            Limit(9000, 8000),
        ),
        (
            "4:memory:/box\n",
            {
                "memory/box/memory.limit_in_bytes": "6000",
                "memory/box/memory.usage_in_bytes": "10",
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "memory/memory.usage_in_bytes": "10",
            },
            Limit(6000, 10),
        ),
    ],
)
def test_the_memory_of_a_container_is_the_group_s_that_has_least_left(
    tmp_path, groups, files, limit
):
    put(tmp_path, groups=groups)
    put(tmp_path / "fs/cgroup", **files)
    assert memory_limit(tmp_path / "groups", tmp_path) == limit


@pytest.mark.parametrize(("group", "folder"), [("0::/box", ""), ("8:pids:/box", "pids/")])
def test_the_number_of_processes_may_be_limited(tmp_path, group, folder):
    put(tmp_path, groups=group)
    put(tmp_path / f"fs/cgroup/{folder}box", **{"pids.max": "100", "pids.current": "7"})
    assert process_limit(tmp_path / "groups", tmp_path) == Limit(100, 7)

"""Too little memory: an error that helps before the epoch, never a bus error or a hang."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from support.memory_groups import memory_group
from support.troubleshooting import OUT_OF_MEMORY, matches
from torch.utils.data import Dataset

from fusionloader import FusionLoader
from fusionloader.system.shm.objects import SharedMemoryExhausted

MIB = 1 << 20
GROUP_MIB = 1024
SETUP = """
import sys
import torch
from torch.utils.data import Dataset
from fusionloader import FusionLoader
from fusionloader.system.shm.objects import SharedMemoryExhausted

class Rows(Dataset):
    def __init__(self, mib, hungry=-1):
        self.mib, self.hungry = mib, hungry

    def __len__(self):
        return 256

    def __getitem__(self, index):
        if index == self.hungry:
            fill()
        return torch.full((self.mib, 1 << 18), float(index))

def fill():
    kept = []
    while True:
        kept.append(bytearray(b"x" * (1 << 24)))

def said(attempt):
    try:
        attempt()
    except (SharedMemoryExhausted, RuntimeError) as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def group():
    try:
        with memory_group(GROUP_MIB * MIB) as made:
            yield made
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")


def run(group, script):
    done = group.run(SETUP + textwrap.dedent(script))
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-3000:]}"
    return done


def assert_helps(said, group):
    assert f"{group.limit_file}: {GROUP_MIB:,}.0 MiB" in said
    for advice in ("--memory", "Kubernetes", "Slurm", "batch_size", "prefetch_factor"):
        assert advice in said


def test_batches_that_do_not_fit_into_the_group_are_refused_before_the_epoch(group):
    before = group.kills
    script = """
    said(lambda: next(iter(FusionLoader(Rows(64), 8, num_workers=2))))
    """
    said = run(group, script).stdout
    assert "SharedMemoryExhausted FusionLoader needs 1,536.0 MiB of shared memory" in said
    assert "for 3 batches of 8 samples in flight" in said
    assert_helps(said, group)
    assert group.kills == before


@pytest.mark.matrix
def test_batches_in_flight_take_a_quarter_of_what_the_group_has_free(group):
    script = """
    loader = FusionLoader(Rows(1), 8, num_workers=2, prefetch_factor=64)
    next(iter(loader))
    print(loader.stats().shared_memory_limit_bytes, loader.stats().shared_memory_bytes)
    """
    limit, taken = map(int, run(group, script).stdout.split())
    assert 8 * MIB < limit < GROUP_MIB // 4 * MIB
    assert taken <= limit + 3 * 8 * MIB  # with one that is delivered, and those just returned


@pytest.mark.matrix
def test_batches_that_are_kept_until_the_group_is_full_are_the_same_error(group):
    before = group.kills
    script = """
    kept = []
    def train():
        for batch in FusionLoader(Rows(4), 8, num_workers=2):
            kept.append(batch)
    said(train)
    for number, batch in enumerate(kept):
        assert batch[:, 0, 0].tolist() == [8.0 * number + row for row in range(8)]
    print(len(kept))
    """
    said = run(group, script).stdout
    assert "SharedMemoryExhausted FusionLoader needs 32.0 MiB" in said
    assert int(said.split()[-1]) >= 3
    assert_helps(said, group)
    assert group.kills == before


@pytest.mark.parametrize(
    "collate",
    [
        pytest.param("None", id="rows", marks=pytest.mark.matrix),
        pytest.param("list", id="whole batches", marks=pytest.mark.matrix),
    ],
)
def test_a_worker_that_is_killed_for_want_of_memory_ends_in_words(group, collate):
    before = group.kills
    script = f"""
    said(lambda: list(FusionLoader(Rows(1, hungry=9), 4, num_workers=1, collate_fn={collate})))
    """
    done = run(group, script)
    assert group.kills > before
    assert "RuntimeError DataLoader worker" in done.stdout
    assert matches(OUT_OF_MEMORY, done.stdout)
    assert_helps(done.stdout, group)
    if collate == "None":
        assert "is killed by signal: Killed" in done.stdout
        assert "one of these is the cause: index 8, index 9, index 10, index 11" in done.stdout


ADDRESS_SPACE = """
import resource
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30), resource.RLIM_INFINITY))
said(lambda: next(iter(FusionLoader(Rows(64), 8, num_workers=1))))
"""


@pytest.mark.matrix
def test_an_address_space_that_is_too_small_is_named():
    done = subprocess.run(
        [sys.executable, "-c", SETUP + ADDRESS_SPACE], capture_output=True, text=True
    )
    assert "SharedMemoryExhausted" in done.stdout, done.stderr[-3000:]
    assert "RLIMIT_AS" in done.stdout and "ulimit -v unlimited" in done.stdout


class Sample(Dataset):
    def __getitem__(self, index):
        return torch.zeros(1 << 24)


def test_batches_that_do_not_fit_into_the_machine_are_refused():
    words = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total = sum(int(words[name].split()[0]) << 10 for name in ("MemTotal", "SwapTotal"))
    rows = -(-total // (1 << 26))  # so that one batch would take all of it
    loader = FusionLoader(Sample(), num_workers=1, batch_sampler=[[0] * rows] * 2)
    with pytest.raises(SharedMemoryExhausted, match=rf"for 3 batches of {rows} samples") as raised:
        next(iter(loader))
    for advice in ("MiB are free by", "num_workers"):
        assert advice in str(raised.value)

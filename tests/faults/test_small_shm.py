"""A ``/dev/shm`` of 4 MiB, as containers have it: an error that helps, never a bus error."""

import os
import shutil
import subprocess
import textwrap

import pytest
from support import warm_start
from support.mounts import in_mount_namespace

MOUNT = "mount -t tmpfs -o size=4m tmpfs /dev/shm"
PRELUDE = """
import os, sys
import torch
from torch.utils.data import Dataset
from fusionloader import FusionLoader
from fusionloader.shm.objects import SharedMemoryExhausted

class Rows(Dataset):
    def __init__(self, kib):
        self.kib = kib

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((self.kib, 256), float(index))

stat = os.statvfs("/dev/shm")
assert stat.f_blocks * stat.f_frsize == 4 << 20, "not the small one"
"""


def _refusal():
    """Why a private /dev/shm cannot be mounted here; empty when it can."""
    if shutil.which("unshare") is None:
        return "there is no unshare"
    tried = subprocess.run(["unshare", "-m", "sh", "-c", MOUNT], capture_output=True, text=True)
    return tried.stderr.strip() if tried.returncode else ""


@pytest.fixture(scope="module", autouse=True)
def _small_shm_is_possible():
    if why := _refusal():
        pytest.skip(f"a private /dev/shm cannot be mounted: {why}")


def run_with_small_shm(script, *arguments):
    """Runs a script in a new mount namespace and returns its output."""
    path = os.pathsep.join([os.getcwd(), os.path.join(os.getcwd(), "tests")])
    code = in_mount_namespace(MOUNT) + PRELUDE + textwrap.dedent(script)
    done = warm_start.completed("-c", code, *arguments, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return done.stdout


def test_a_plan_that_needs_more_is_refused_before_any_worker(image_folder):
    script = """
    from support.images import train_transform
    from torchvision.datasets import ImageFolder

    loader = FusionLoader(ImageFolder(sys.argv[1], train_transform(224)), 8, num_workers=2)
    try:
        iter(loader)
    except SharedMemoryExhausted as error:
        print(error)
    """
    said = run_with_small_shm(script, str(image_folder))
    # (2 workers x 2 ahead + 1) batches of 8 samples of 3 x 224 x 224 float32
    assert "FusionLoader needs 13.8 MiB of shared memory for 3 batches of 8 samples" in said
    assert "/dev/shm has 3.9 MiB free" in said or "/dev/shm has 4.0 MiB free" in said
    for advice in ("--shm-size", "emptyDir", "remount", "batch_size", "prefetch_factor"):
        assert advice in said


def test_user_code_that_needs_more_is_refused_before_the_first_batch():
    script = """
    try:
        next(iter(FusionLoader(Rows(512), 4, num_workers=2)))
    except SharedMemoryExhausted as error:
        print(error)
    """
    said = run_with_small_shm(script)
    assert "FusionLoader needs 6.0 MiB of shared memory for 3 batches of 4 samples" in said
    assert "/dev/shm has" in said and "--shm-size" in said


def test_batches_that_the_user_keeps_until_it_is_full_are_the_same_error():
    script = """
    kept = []
    try:
        for batch in FusionLoader(Rows(128), 4, num_workers=2):
            kept.append(batch)
    except SharedMemoryExhausted as error:
        print(len(kept), error)
    for number, batch in enumerate(kept):
        assert batch[:, 0, 0].tolist() == [4.0 * number + row for row in range(4)]
    """
    count, said = run_with_small_shm(script).split(" ", 1)
    assert int(count) >= 1
    assert "FusionLoader needs" in said and "/dev/shm has" in said and "--shm-size" in said


def test_a_loader_that_fits_works():
    script = """
    for _ in range(3):
        rows = [batch[:, 0, 0].tolist() for batch in FusionLoader(Rows(32), 4, num_workers=2)]
        assert sum(rows, []) == [float(index) for index in range(64)]
    print(len(os.listdir("/dev/shm")))
    """
    assert run_with_small_shm(script).strip() == "0"


CACHED = """
import logging
from support.images import train_transform
from torchvision.datasets import ImageFolder
from fusionloader import DecodedCache

logging.basicConfig(stream=sys.stdout, format="%(message)s")
dataset = ImageFolder(sys.argv[1], train_transform())
expected = [[batch[0] for batch in FusionLoader(dataset, 4, num_workers=1, seed=2)]]
loader = FusionLoader(dataset, 4, num_workers=1, seed=2, cache=DecodedCache("1GiB"))
iterator = iter(loader)
"""


def test_a_decoded_cache_is_not_in_it(image_folder):
    script = """
    assert all(map(torch.equal, (batch[0] for batch in iterator), expected[0]))
    found = loader.stats().decoded_cache
    assert found.images == 40 and found.bytes > 1 << 20, found
    stat = os.statvfs("/dev/shm")
    print((stat.f_blocks - stat.f_bavail) * stat.f_frsize)
    """
    said = run_with_small_shm(CACHED + textwrap.dedent(script), str(image_folder))
    assert int(said.split()[-1]) < 1 << 20

"""A ``/dev/shm`` of 64 KiB, smaller than containers have it: it does not matter."""

import os
import shutil
import subprocess
import textwrap

import pytest
from support import warm_start
from support.mounts import in_mount_namespace

MOUNT = "mount -t tmpfs -o size=64k tmpfs /dev/shm"
SETUP = """
import os, sys
import torch
from torch.utils.data import Dataset
from fusionloader import FusionLoader

class Rows(Dataset):
    def __init__(self, kib):
        self.kib = kib

    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((self.kib, 256), float(index))
"""
SMALL = """
stat = os.statvfs("/dev/shm")
assert stat.f_blocks * stat.f_frsize == 64 << 10, "not the small one"
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


def environment():
    path = os.pathsep.join([os.getcwd(), os.path.join(os.getcwd(), "tests")])
    return {**os.environ, "PYTHONPATH": path}


def run_with_small_shm(script, *arguments):
    """Runs a script in a new mount namespace and returns its output."""
    code = in_mount_namespace(MOUNT) + SETUP + SMALL + textwrap.dedent(script)
    done = warm_start.completed("-c", code, *arguments, env=environment())
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    return done.stdout


def test_batches_of_a_plan_are_those_of_a_large_one(image_folder):
    script = """
    import hashlib
    from support.images import train_transform
    from torchvision.datasets import ImageFolder

    loader = FusionLoader(ImageFolder(sys.argv[1], train_transform(224)), 8, num_workers=2, seed=1)
    for _ in range(2):
        print(hashlib.sha256(b"".join(batch.numpy() for batch, _ in loader)).hexdigest())
    """
    code = SETUP + textwrap.dedent(script)
    here = warm_start.completed("-c", code, str(image_folder), env=environment())
    assert run_with_small_shm(script, str(image_folder)) == here.stdout


@pytest.mark.matrix
def test_kept_batches_of_user_code_are_whole():
    script = """
    kept = list(FusionLoader(Rows(128), 4, num_workers=2))
    for number, batch in enumerate(kept):
        assert batch.shape == (4, 128, 256)
        assert batch[:, 0, 0].tolist() == [4.0 * number + row for row in range(4)]
    print(len(kept), len(os.listdir("/dev/shm")))
    """
    assert run_with_small_shm(script).split() == ["16", "0"]


@pytest.mark.matrix
def test_whole_batches_are_whole_whichever_way_they_go():
    script = """
    KEPT = torch.arange(1 << 16)

    def views(rows):
        whole = torch.stack(rows)
        return whole, whole[0]

    def sparse(rows):
        return torch.stack(rows).to_sparse(), rows[0]

    def small(rows):
        return torch.stack(rows), [row[:1].clone() for row in rows]

    def kept(rows):
        return torch.stack(rows), KEPT.view(256, 256)

    for collate in (views, sparse, small, kept):
        found = list(FusionLoader(Rows(64), 4, num_workers=2, collate_fn=collate))
        assert len(found) == 16
        for number, (batch, other) in enumerate(found):
            batch = batch.to_dense() if batch.is_sparse else batch
            assert torch.equal(batch[:, 5, 5], 4.0 * number + torch.arange(4.0)), number
            if collate is views:
                batch[0, 0, 0] = -7
                assert other[0, 0] == -7
            if collate is kept:
                assert torch.equal(other.flatten(), KEPT)
    print("whole")
    """
    assert run_with_small_shm(script).strip() == "whole"


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
    assert int(said.split()[-1]) == 0

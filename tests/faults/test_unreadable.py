"""Files that the user may not read, as a user who is not root."""

import os
import shutil
import tempfile
import textwrap

import pytest
from support import warm_start
from support.notes import HAS_NOTES
from torchvision.datasets import ImageFolder

NOBODY = 65534

# A late import would be refused as well where Python itself is in root's home folder.
SCRIPT = """
import multiprocessing.popen_fork, os, sys
from PIL import Image
from support.images import eval_transform, train_transform
from support.notes import said
from torchvision import transforms
from torchvision.datasets import ImageFolder
from fusionloader import FusionLoader
from fusionloader.engine.iterators import in_process, slot_iterator as slot_iterator
from fusionloader.workers import native_worker, python_worker
from fusionloader.workers import sample_errors, prepared_worker
from fusionloader.engine.iterators import torchs_workers

root, kind, workers = sys.argv[1:]
Image.init()
steps = eval_transform()
if kind == "tail":
    steps = transforms.Compose([steps, transforms.RandomErasing(0.0)])
dataset = ImageFolder(root, steps)
samples = len(dataset)
next(iter(FusionLoader(dataset, 8, num_workers=int(workers))))
os.setgroups([])
os.setgid({nobody})
os.setuid({nobody})
loader = FusionLoader(dataset, 8, num_workers=int(workers), on_error="{on_error}")
"""
REPORT = """
try:
    list(loader)
except PermissionError as error:
    print("PermissionError", said(error))
"""


@pytest.fixture
def folder(image_folder):
    """A copy that all users may read; pytest's temporary folders are for one user."""
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        copy = os.path.join(root, "images")
        shutil.copytree(image_folder, copy)
        os.chmod(copy, 0o755)
        yield copy


def run_as_nobody(script, folder, kind, workers, on_error="raise"):
    """Runs a script that lists the folder and then becomes user nobody; returns its output."""
    text = SCRIPT.format(nobody=NOBODY, on_error=on_error) + textwrap.dedent(script)
    path = os.pathsep.join([os.getcwd(), os.path.join(os.getcwd(), "tests")])
    done = warm_start.completed(
        *("-c", text, folder, kind, str(workers)), env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("kind", "workers"), [("plan", 0), ("tail", 2)])
def test_a_file_in_a_folder_that_may_not_be_entered_is_named(folder, kind, workers):
    path = ImageFolder(folder).samples[20][0]  # the first one of the second class
    os.chmod(os.path.dirname(path), 0)
    said = run_as_nobody(REPORT, folder, kind, workers)
    assert said.startswith("PermissionError")
    assert "index 20" in said and path in said or not (workers or HAS_NOTES)


@pytest.mark.parametrize("kind", ["plan", "tail"])
def test_a_file_that_may_not_be_read_is_named(folder, kind):
    path = ImageFolder(folder).samples[11][0]
    os.chmod(path, 0)
    said = run_as_nobody(REPORT, folder, kind, 2)
    assert said.startswith("PermissionError")
    assert "index 11" in said and path in said


def test_what_may_not_be_read_can_be_left_out(folder):
    path = ImageFolder(folder).samples[20][0]
    os.chmod(os.path.dirname(path), 0)
    script = """
    print([target for _, targets in loader for target in targets.tolist()] == [0] * 20)
    print(loader.stats().skipped, "PermissionError" in loader.stats().errors[0])
    """
    assert run_as_nobody(script, folder, "plan", 2, "skip").split() == ["True", "20", "True"]


def test_all_is_well_where_everything_may_be_read(folder):
    script = "print(sum(len(targets) for _, targets in loader))"
    assert run_as_nobody(script, folder, "plan", 2).strip() == "40"

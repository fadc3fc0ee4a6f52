"""The comparison with the original class: what it counts, and that it survives bad tests."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import PATIENCE

COMPLIANCE = Path(__file__).with_name("compliance.py")
SUITE = """
import os, subprocess, sys
import torch
from torch.utils.data import DataLoader, TensorDataset

def is_ours(kind=DataLoader):
    return kind.__name__ == "FusionLoader"

def test_good():
    assert sum(len(batch) for batch, in DataLoader(TensorDataset(torch.arange(9)), 2)) == 9

def test_of_another_process():
    code = "from torch.utils.data import DataLoader; print(DataLoader.__name__)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.strip() == DataLoader.__name__

def name_of_the_class(_):
    from torch.utils.data import DataLoader
    return DataLoader.__name__

def test_of_spawned_workers():
    workers = {"num_workers": 1, "multiprocessing_context": "spawn"}
    loader = DataLoader([0], collate_fn=name_of_the_class, **workers)
    assert list(loader) == [DataLoader.__name__]

def test_bad():
    assert not is_ours()

def test_that_ends_the_process():
    if is_ours():
        os._exit(3)

def test_of_the_original_that_fails():
    assert is_ours()

def test_ind_worker_queue():
    assert not is_ours()
"""


HANGING = """
import time
from torch.utils.data import DataLoader

def test_that_hangs(kind=DataLoader):
    while kind.__name__ == "FusionLoader":
        time.sleep(1)

def test_after_it():
    assert True
"""


def compare(folder, suite, seconds):
    """What is said of a suite whose tests have so many seconds each."""
    (folder / "test_dataloader.py").write_text(suite)
    command = [sys.executable, str(COMPLIANCE), str(folder), "--results", str(folder / "out")]
    done = subprocess.run([*command, "--timeout", str(seconds)], capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.mark.studies
@pytest.mark.timeout(600)
def test_each_test_is_compared_whatever_becomes_of_those_before_it(tmp_path):
    said = compare(tmp_path, SUITE, PATIENCE)
    assert "3 passed of 6 that pass with the original; 1 failed of" in said
    assert_told(said, "test_bad", "is_ours()")
    assert_told(said, "test_that_ends_the_process", "exited with 3")
    assert "1 tests served by fusionloader.engine.iterators" in said
    ours = json.loads((tmp_path / "out" / "torch-fork-ours.json").read_text())
    assert ours["test_dataloader.py::test_of_the_original_that_fails"]["outcome"] == "passed"


def assert_told(said, name, why):
    line = next(line for line in said.splitlines() if line.endswith(why) and f"{name}:" in line)
    assert "not exempt" in line


@pytest.mark.studies
@pytest.mark.timeout(600)
def test_a_test_that_hangs_is_left_behind(tmp_path):
    said = compare(tmp_path, HANGING, 10)
    assert "1 passed of 2 that" in said
    assert_told(said, "test_that_hangs", "hung")


def test_without_a_suite_it_says_that_it_cannot_run(tmp_path):
    done = subprocess.run(
        [sys.executable, str(COMPLIANCE), str(tmp_path), "--results", str(tmp_path / "out")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 77
    assert done.stdout.startswith("fusionloader: no suite was run")

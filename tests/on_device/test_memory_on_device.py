"""What ``memory_sharing.py`` tries, on a CUDA device, and in part over the fake driver."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_sharing import HERE, NO_DEVICE, WORK_US, names, run_case
from support import cuda_driver

from benchmarks.largest_batch import largest

REASON = cuda_driver.why_not()
ON_DEVICE = [
    (module, name) for module in ("memory_cases", "memory_torch_cases") for name in names(module)
]


def check(found):
    assert found["passed"], found["error"]


@pytest.mark.gpu
@pytest.mark.skipif(REASON is not None, reason=f"no CUDA device: {REASON}")
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("module", "name"), ON_DEVICE)
def test_on_a_device(module, name):
    check(run_case(module, name, 180))


@pytest.mark.parametrize("name", names("memory_cases"))
@pytest.mark.usefixtures("fake_library")
def test_over_the_fake_driver(name, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_WORK_US", WORK_US)
    check(run_case("memory_cases", name, 100))


def test_cases_are_found_without_importing_them():
    assert len(ON_DEVICE) > 12
    assert ("memory_torch_cases", "training_is_the_same_bit_for_bit") in ON_DEVICE


def test_a_case_that_hangs_or_fails_is_told_from_one_that_passes(tmp_path, monkeypatch):
    (tmp_path / "made_up_cases.py").write_text(
        "import time\n"
        "def hangs():\n    time.sleep(600)\n"
        "def fails():\n    assert False, 'as it should'\n"
        "def passes():\n    return {'ms': 1}\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "no end within" in run_case("made_up_cases", "hangs", 2)["error"]
    assert "as it should" in run_case("made_up_cases", "fails", 60)["error"]
    assert run_case("made_up_cases", "passes", 60)["figures"] == {"ms": 1}


@pytest.mark.skipif(REASON is None, reason="there is a CUDA device")
def test_the_script_says_that_there_is_no_device():
    bare = {name: value for name, value in os.environ.items() if name != "FUSIONLOADER_LIBCUDA"}
    command = [sys.executable, str(HERE / "memory_sharing.py")]
    done = subprocess.run(command, capture_output=True, text=True, env=bare)
    assert done.returncode == NO_DEVICE
    assert done.stdout.startswith("no CUDA device: ")


@given(most=st.integers(0, 5000), grain=st.integers(1, 64))
def test_the_search_finds_the_largest_batch_that_fits(most, grain):
    tried = []

    def fits(batch):
        tried.append(batch)
        return batch <= most

    assert largest(fits, grain) == most // grain * grain
    assert len(tried) == len(set(tried)) <= 30

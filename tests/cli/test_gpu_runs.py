"""The runs for a device: results are kept step by step, whatever a step does; run A's rehearsal."""

import json
import time

import pytest

from benchmarks.gpu.runs import RUNS
from benchmarks.gpu.steps import JSON, Step, run_steps

WRITES = f"import json, pathlib; pathlib.Path('{JSON}').write_text(json.dumps([1, 2]))"


def step(name, code, seconds=30.0):
    return Step(name, ("-c", "raise SystemExit('not rehearsed')"), seconds, ("-c", code))


def test_a_step_that_fails_or_hangs_keeps_no_other_from_its_results(tmp_path):
    file = tmp_path / "made" / "run.json"
    child = "import subprocess; subprocess.run(['sleep', '99'])"
    looks = f"seen = json.load(open({str(file)!r})); print(len(seen['steps']))"
    steps = [
        step("writes", f"{WRITES}; print('done')"),
        step("fails", "print('before'); raise SystemExit(3)"),
        step("hangs", f"print('begun', flush=True); {child}", seconds=1.0),
        step("looks", f"{WRITES}; {looks}"),
    ]
    began = time.monotonic()
    assert run_steps(steps, file, 60, rehearsal=True) == 1
    assert time.monotonic() - began < 40
    results = json.loads(file.read_text())
    found = results["steps"]
    assert [found[name]["status"] for name in ("writes", "fails", "looks")] == [
        "passed",
        "failed: status 3",
        "passed",
    ]
    assert found["writes"]["figures"] == [1, 2] and found["writes"]["said"] == "done\n"
    assert found["fails"]["said"] == "before\n"
    assert found["hangs"]["status"] == "no end within 1 s" and "begun" in found["hangs"]["said"]
    assert found["looks"]["said"] == "3\n"
    assert results["rehearsal"] and "torch" in results["versions"]


def test_steps_for_which_no_time_is_left_are_skipped(tmp_path):
    file = tmp_path / "run.json"
    assert run_steps([step("one", "pass"), step("two", "pass")], file, 0, rehearsal=True) == 1
    statuses = {found["status"] for found in json.loads(file.read_text())["steps"].values()}
    assert statuses == {"skipped: no time was left"}


@pytest.mark.parametrize("run", RUNS)
def test_the_steps_of_a_run_fit_into_ten_minutes(run):
    steps = RUNS[run].steps
    assert RUNS[run].seconds < 600
    assert len({each.name for each in steps}) == len(steps)
    first = steps[0].seconds + steps[1].seconds
    assert first <= RUNS[run].seconds


def _rehearsed(names, tmp_path):
    """Returns the figures of some steps of run A, without a device."""
    steps = [step for step in RUNS["a"].steps if step.name in names]
    code = run_steps(steps, tmp_path / "run_a.json", 280, rehearsal=True)
    found = json.loads((tmp_path / "run_a.json").read_text())["steps"]
    said = {name: each.get("said", "")[-1500:] for name, each in found.items()}
    assert code == 0, {name: said[name] for name in found if found[name]["status"] != "passed"}
    return {name: each["figures"] for name, each in found.items() if "figures" in each}


@pytest.mark.studies
def test_deliveries_can_be_rehearsed_without_a_device(tmp_path):
    delivered = _rehearsed(["deliveries"], tmp_path)["deliveries"]
    assert delivered["levels"]["equal_batches"] == delivered["floats"]["equal_batches"] == 8
    shared = [delivered[name]["shared_memory_bytes"] for name in ("levels", "floats")]
    assert shared[0] < shared[1] / 2


@pytest.mark.studies
def test_the_other_steps_of_run_a_can_be_rehearsed(tmp_path):
    others = [step.name for step in RUNS["a"].steps if step.name != "deliveries"]
    assert _rehearsed(others, tmp_path)

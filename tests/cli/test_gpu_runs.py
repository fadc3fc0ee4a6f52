"""The runs for a device: figures are kept one by one, whatever happens; short rehearsals."""

import json
import os
import time
from types import SimpleNamespace

import pytest
import torch
from support.waiting import PATIENCE, wait_until

from benchmarks import training
from benchmarks.gpu import mps
from benchmarks.gpu.dmon import Utilisation
from benchmarks.gpu.runs import RUNS
from benchmarks.gpu.steps import JSON, Step, run_steps
from benchmarks.study import append


def step(name, code, seconds=PATIENCE):
    return Step(
        name, ("-c", f"import sys\nassert 'rehearsed' in sys.argv\n{code}"), seconds, ("rehearsed",)
    )


def test_a_step_that_fails_or_hangs_keeps_no_other_from_its_results(tmp_path):
    file = tmp_path / "made" / "run.json"
    child = "import subprocess; subprocess.run(['sleep', '999'])"
    written = '{"rate": 1}\n{"rate": 2}\n{"rate'
    writes = f"open({JSON!r}, 'a').write({written!r})"
    looks = f"import json; seen = json.load(open({str(file)!r})); print(len(seen['steps']))"
    steps = [
        step("passes", "print('done')"),
        step("fails", "print('before'); raise SystemExit(3)"),
        step("Hangs, late", f"{writes}\n{child}", seconds=10.0),
        step("looks", looks),
    ]
    began = time.monotonic()
    assert run_steps(steps, file, 3 * PATIENCE, "brief") == 1
    assert time.monotonic() - began < PATIENCE
    results = json.loads(file.read_text())
    found = results["steps"]
    assert [found[name]["status"] for name in ("passes", "fails", "looks")] == [
        "passed",
        "failed: status 3",
        "passed",
    ]
    assert found["fails"]["said"] == "before\n"
    assert found["Hangs, late"]["status"] == "no end within 10 s"
    assert found["Hangs, late"]["figures"] == [{"rate": 1}, {"rate": 2}]
    assert (tmp_path / "made" / "run.hangs_late.jsonl").read_text().count("rate") == 3
    assert found["looks"]["said"] == "3\n"
    assert results["rehearsal"] == "brief" and "torch" in results["versions"]


def test_a_case_is_a_line_of_its_own(tmp_path, capsys):
    for rate in (1, 2):
        append(tmp_path / "figures", rate=rate, device=torch.device("cpu"))
    append(None, rate=3)
    lines = (tmp_path / "figures").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"rate": rate, "device": "cpu"} for rate in (1, 2)
    ]
    assert capsys.readouterr().out.splitlines() == [*lines, '{"rate": 3}']


def test_steps_for_which_no_time_is_left_are_skipped(tmp_path):
    file = tmp_path / "run.json"
    assert run_steps([step("one", "pass"), step("two", "pass")], file, 0, "brief") == 1
    statuses = {found["status"] for found in json.loads(file.read_text())["steps"].values()}
    assert statuses == {"skipped: no time was left"}


@pytest.mark.parametrize("run", RUNS)
def test_the_steps_of_a_run_fit_into_ten_minutes(run):
    steps = RUNS[run].steps
    assert RUNS[run].seconds < 600
    assert len({each.name for each in steps}) == len(steps)
    assert steps[0].seconds <= RUNS[run].seconds


# https://docs.nvidia.com/deploy/nvidia-smi: "#" begins the columns' names, then their units, again
# after some rows; "-" is what a device does not have. Recorded of a device without a JPEG engine.
DMON = """#!/bin/sh
cat <<'END'
# gpu     sm    mem    enc    dec    jpg    ofa
# Idx      %      %      %      %      %      %
    0      6      4     11      0      -      -
    0      8      4     23      0      -      -
# gpu     sm    mem    enc    dec    jpg    ofa
# Idx      %      %      %      %      %      %
    0     10      4     31      0      -      -
END
exec sleep 60
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Makes a program that comes first."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    def make(name, text):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    return make


def test_the_device_s_utilisation_is_the_mean_of_a_time(program):
    program("nvidia-smi", DMON)
    monitor = Utilisation()
    wait_until(lambda: monitor.since(0).get("enc") == 21.7)
    assert monitor.since(0) == {"sm": 8.0, "mem": 4.0, "enc": 21.7, "dec": 0.0}
    assert monitor.since(time.monotonic() + 1) == {}
    monitor.close()


def test_without_nvidia_smi_no_utilisation_is_known(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monitor = Utilisation()
    assert monitor.since(0) == {}
    monitor.close()


def test_mps_runs_for_as_long_as_training_does(program, tmp_path, monkeypatch):
    log = tmp_path / "log"
    program(mps.CONTROL, f'#!/bin/sh\necho "control $*" >> {log}\ntest $# != 0 || cat >> {log}\n')
    program("python", f'#!/bin/sh\ntest -d "$CUDA_MPS_PIPE_DIRECTORY" && echo "$*" >> {log}\n')
    monkeypatch.setattr(mps.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(mps.sys, "argv", ["mps", "--json", "to", "--models", "resnet50"])
    assert mps.main() == 0
    assert log.read_text().splitlines() == [
        "control -d",
        "-m benchmarks.training --label mps --models resnet50 --json to",
        "control ",
        "quit",
    ]


class Loader:
    """A loader whose GPU worker is what it is told to be."""

    gpu_worker = "auto"

    def __init__(self, **told):
        self.told = {"gone": None, "profiling": False, "samples": 9, "mode": "spatial", **told}

    def stats(self):
        return SimpleNamespace(gpu_worker=self.told)

    def __iter__(self):
        while True:
            yield torch.zeros(4, 3, 8, 8), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("told", "state"), [({}, "ready"), ({"gone": "it died"}, "gone"), ({"samples": 0}, "late")]
)
def test_a_cell_shows_a_gpu_worker_that_is_gone_or_late(monkeypatch, told, state):
    monkeypatch.setattr(training, "FusionLoader", Loader)
    monkeypatch.setattr(training, "close_loader", lambda loader: None)
    cpu = torch.device("cpu")
    options = SimpleNamespace(patience=0.01, warm_up=0.01, seconds=0.05)
    monitor = SimpleNamespace(since=lambda begin: {"sm": 5.0})
    made = training.Training("pooling", cpu)

    def start():
        return training.TrainingContender(cpu, Loader(**told))

    found = training.cell(made, start, monitor, options)
    assert found["state"] == state and found["rate"] > 0 and 0 <= found["waiting"] <= 1
    assert found["gpu_worker"]["gone"] == told.get("gone")
    assert found["utilisation"] == {"sm": 5.0}


def test_an_error_of_a_loader_is_a_figure_of_its_cell():
    def start():
        raise RuntimeError("CUDA error: out of memory")

    found = training.cell(training.Training("pooling", torch.device("cpu")), start, None, None)
    assert found == {"state": "failed", "error": "RuntimeError: CUDA error: out of memory"}


@pytest.mark.studies
@pytest.mark.parametrize("run", RUNS)
def test_a_run_can_be_rehearsed_without_a_device(run, tmp_path):
    code = run_steps(RUNS[run].steps, tmp_path / "run.json", RUNS[run].seconds, "brief")
    found = json.loads((tmp_path / "run.json").read_text())["steps"]
    said = {name: each.get("said", "")[-1500:] for name, each in found.items()}
    assert code == 0, {name: said[name] for name in found if found[name]["status"] != "passed"}
    assert all(each.get("figures") for name, each in found.items() if "tests" not in name)
    if run == "a":
        levels, floats, by_workers, by_device = found["deliveries"]["figures"]
        assert by_workers["equal_batches"] == by_device["equal_batches"] == 8
        assert by_device["copied_bytes"] < by_workers["copied_bytes"] / 2
        assert levels["equal_batches"] == floats["equal_batches"] == 8
        assert levels["shared_memory_bytes"] < floats["shared_memory_bytes"] / 2
    if run == "b":
        cells = found["matrix, ResNet-50"]["figures"][1:]
        assert [each["loader"] for each in cells] == ["ceiling", *training.DEFAULT.split(",")]
        assert {each.get("state", "ready") for each in cells} == {"ready"}

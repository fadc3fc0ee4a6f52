"""The doctor's lines, its JSON and its exit status."""

import json
from argparse import Namespace

import pytest
from support.fake_cuda import run_program

from fusionloader.__main__ import main
from fusionloader.cli import doctor
from fusionloader.cli.doctor import cores, examination, packages
from fusionloader.cli.doctor.check import Check
from fusionloader.cli.doctor.report import exit_status, line_of, summary

OK, WARN = Check("load", "0.5"), Check("load", "9", "warn", "top")
FAIL = Check("torch", "missing", "fail", "pip install torch")
SUBJECTS = ("packages", "cores")


@pytest.fixture
def two_subjects(monkeypatch):
    """The doctor looks at these alone."""
    monkeypatch.setattr(examination, "_SUBJECTS", SUBJECTS)


def run(data=None, as_json=False, quick=True):
    return doctor.run(Namespace(data=data, remote=None, token_file=None, json=as_json, quick=quick))


def test_a_line_has_state_name_and_value_and_the_next_one_what_to_type():
    assert line_of(OK).split() == ["ok", "load", "0.5"]
    first, second = line_of(FAIL).splitlines()
    assert first.split() == ["fail", "torch", "missing"]
    assert second.strip() == "-> pip install torch"


@pytest.mark.parametrize(
    ("checks", "status", "said"),
    [
        ([OK, OK], 0, "no problems found"),
        ([OK, WARN], 0, "0 of 2 checks failed, 1 warn"),
        ([OK, WARN, FAIL], 1, "1 of 3 checks failed, 1 warn"),
    ],
)
def test_only_failures_are_a_failure(checks, status, said):
    assert exit_status(checks) == status
    assert summary(checks) == said


@pytest.mark.usefixtures("two_subjects")
def test_json_has_every_check_and_nothing_else(monkeypatch, capsys):
    monkeypatch.setattr(packages, "checks", lambda: iter([OK, FAIL]))
    monkeypatch.setattr(cores, "checks", lambda: iter([WARN]))
    assert run(as_json=True) == 1
    assert json.loads(capsys.readouterr().out) == [
        {"name": "load", "state": "ok", "value": "0.5", "remedy": ""},
        {"name": "torch", "state": "fail", "value": "missing", "remedy": "pip install torch"},
        {"name": "load", "state": "warn", "value": "9", "remedy": "top"},
    ]


@pytest.mark.usefixtures("two_subjects")
def test_what_cannot_be_looked_at_is_a_failure_and_not_the_end(monkeypatch, capsys):
    def broken():
        yield OK
        raise OSError("no such device")

    monkeypatch.setattr(packages, "checks", broken)
    monkeypatch.setattr(cores, "checks", lambda: iter([WARN]))
    assert run() == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("fail  packages") and "OSError: no such device" in lines[1]
    assert lines[3].startswith("warn  load")


def test_what_is_not_ok_says_what_to_type():
    for check in examination.examine(None, None, measure=False):
        assert bool(check.remedy) == (check.state != "ok"), check


@pytest.mark.few(1)
@pytest.mark.parametrize("broken", ["fusionloader._native", "torch"])
def test_a_broken_installation_is_examined_to_the_end(broken):
    code = f"import sys; sys.modules[{broken!r}] = None; from fusionloader.__main__ import main"
    done = run_program(f"{code}; sys.exit(main(['doctor', '--json', '--quick']))")
    checks = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert any(check["state"] == "fail" and check["remedy"] for check in checks)
    assert "memory limit" in {check["name"] for check in checks}


def test_a_folder_that_is_none_is_refused(tmp_path, capsys):
    assert main(["doctor", "--data", str(tmp_path / "missing")]) == 2
    assert "is no folder; name one with your images" in capsys.readouterr().err

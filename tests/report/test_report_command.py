"""The command that writes a report, and files that it can make none of."""

import json

import pytest
from support.timelines import synthetic_timeline
from support.training_timelines import timeline

from fusionloader.__main__ import main
from fusionloader.observe.trace.files import write_timeline
from fusionloader.observe.trace.timeline import Timeline


@pytest.mark.few(1)
@pytest.mark.parametrize("ending", ["pftrace", "json"])
def test_a_trace_becomes_a_page(tmp_path, capsys, ending):
    path, out = tmp_path / f"run.{ending}", tmp_path / "page.html"
    write_timeline(synthetic_timeline(20, 2), path)
    assert main(["report", str(path), "-o", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert f"run.{ending}" in text
    assert str(out) in capsys.readouterr().out


def write_cut_off(path):
    write_timeline(synthetic_timeline(20, 2), path)
    path.write_bytes(path.read_bytes()[:-200])


FOREIGN = json.dumps({"traceEvents": [{"ph": "X", "name": "aten::add"}]})


@pytest.mark.parametrize(
    ("write", "name", "out", "why"),
    [
        (write_cut_off, "run.json.gz", "page.html", "cut off"),
        (lambda path: path.touch(), "run.json.gz", "page.html", "is empty"),
        (lambda path: path.write_text(FOREIGN), "profiler.json", "page.html", "profiler.json"),
        (lambda path: None, "none.pftrace", "page.html", "none.pftrace"),
        (
            lambda path: write_timeline(Timeline(timeline().meta), path),
            *("run.pftrace", "page.html", "run.pftrace has no step: "),
        ),
        *[
            (lambda path: write_timeline(synthetic_timeline(20, 2), path), "run.json", out, out)
            for out in ("nowhere/page.html", ".")
        ],
    ],
)
def test_what_cannot_be_reported_is_answered_in_one_line(
    tmp_path, monkeypatch, capsys, write, name, out, why
):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / name)
    assert main(["report", name, "-o", out]) == 2
    said = capsys.readouterr().err.splitlines()
    (line,) = [line for line in said if not line.startswith("  reading ")]  # progress
    assert line.startswith("fusionloader report: ") and why in line
    assert not (tmp_path / "page.html").exists()

"""The command that writes a report, and files that it can make none of."""

import json

import pytest
from support.timelines import synthetic_timeline
from support.training_timelines import timeline

from fusionloader.__main__ import main
from fusionloader.observe.trace.files import write_timeline
from fusionloader.observe.trace.timeline import Timeline


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "run.json.gz"
    write_timeline(synthetic_timeline(20, 2), path)
    return path


@pytest.mark.parametrize("ending", ["pftrace", "json"])
def test_a_trace_becomes_a_page(tmp_path, capsys, ending):
    path, out = tmp_path / f"run.{ending}", tmp_path / "page.html"
    write_timeline(synthetic_timeline(20, 2), path)
    assert main(["report", str(path), "-o", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert f"run.{ending}" in text
    assert str(out) in capsys.readouterr().out


def refused(capsys, *arguments) -> str:
    """Returns the one line that the command says when it gives up."""
    assert main(["report", *map(str, arguments)]) == 2
    said = capsys.readouterr().err.splitlines()
    (line,) = [line for line in said if not line.startswith("  reading ")]  # progress
    assert line.startswith("fusionloader report: ")
    return line


def test_a_truncated_trace_is_refused(trace, tmp_path, capsys):
    trace.write_bytes(trace.read_bytes()[:-200])
    assert "cut off" in refused(capsys, trace, "-o", tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_an_empty_file_is_refused(trace, capsys):
    trace.write_bytes(b"")
    assert "is empty" in refused(capsys, trace)


def test_a_trace_of_another_program_is_refused(tmp_path, capsys):
    path = tmp_path / "profiler.json"
    path.write_text(json.dumps({"traceEvents": [{"ph": "X", "name": "aten::add"}]}))
    assert "profiler.json" in refused(capsys, path)


def test_a_file_that_is_not_there_is_named(tmp_path, capsys):
    assert "none.pftrace" in refused(capsys, tmp_path / "none.pftrace")


def test_a_trace_without_steps_is_refused(tmp_path, capsys):
    write_timeline(Timeline(timeline().meta), tmp_path / "run.pftrace")
    assert "has no step" in refused(capsys, tmp_path / "run.pftrace")


def test_a_page_that_cannot_be_written_is_named(trace, tmp_path, capsys):
    out = tmp_path / "nowhere" / "page.html"
    assert str(out) in refused(capsys, trace, "-o", out)
    assert str(tmp_path) in refused(capsys, trace, "-o", tmp_path)

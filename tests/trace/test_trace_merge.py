"""A loader's trace and torch.profiler's on one clock."""

import gzip
import json

import pytest
import torch
from loaders import chrome_tracks, overlaps
from support.datasets import Numbers
from support.timelines import synthetic_timeline
from torch.profiler import ProfilerActivity, profile, record_function

from fusionloader import FusionLoader
from fusionloader.__main__ import main
from fusionloader.observe.trace.errors import TraceError
from fusionloader.observe.trace.files import read_timeline, write_timeline
from fusionloader.observe.trace.merge import merge_traces

CLOCK_ERROR_US = 1000  # between torch's measurement of Unix time and ours, on a busy machine


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """Both traces of a training loop; torch's has a marker around each next()."""
    folder = tmp_path_factory.mktemp("training")
    loader = FusionLoader(Numbers(40), batch_size=4, num_workers=1)
    weights = torch.zeros(4, 4)
    with profile(activities=[ProfilerActivity.CPU]) as torch_trace:
        with loader.trace(folder / "ours.json.gz") as trace:
            batches = iter(loader)
            for _ in range(10):
                with record_function("marker around next"):
                    batch = next(batches)
                weights = weights @ weights + batch
        assert not trace.is_on
    torch_trace.export_chrome_trace(str(folder / "torch.json"))
    return folder


def slices(path, name):
    contents = path.read_bytes()
    events = json.loads(gzip.decompress(contents) if path.suffix == ".gz" else contents)
    return [e for e in events["traceEvents"] if e.get("ph") == "X" and e["name"] == name]


def test_each_next_lies_within_its_marker(training):
    merge_traces([training / "ours.json.gz", training / "torch.json"], training / "both.json")
    ours, markers = (
        slices(training / "both.json", "next()"),
        slices(training / "both.json", "marker around next"),
    )
    assert len(ours) == len(markers) == 10
    # Clocks that differed by more than a next() takes would put some of them outside.
    for inner, outer in zip(ours, markers, strict=True):
        before, behind = inner["ts"] - outer["ts"], outer["dur"] - inner["dur"]
        assert before > -CLOCK_ERROR_US
        assert behind - before > -CLOCK_ERROR_US


def test_the_merged_trace_has_all_of_both_and_no_overlaps_of_ours(training):
    counts = merge_traces(
        [training / "torch.json", training / "ours.json.gz"], training / "both.json"
    )
    merged = json.loads((training / "both.json").read_bytes())
    assert len(merged["traceEvents"]) == sum(counts.values())
    of_torch = json.loads((training / "torch.json").read_bytes())
    assert merged["trace_id"] == of_torch["trace_id"]
    theirs = {event["pid"] for event in of_torch["traceEvents"]}
    tracks = {
        pid_tid: s
        for pid_tid, s in chrome_tracks(training / "both.json").items()
        if pid_tid[0] not in theirs
    }
    assert tracks and not [wrong for each in tracks.values() for wrong in overlaps(each)]
    assert read_timeline(training / "both.json") == read_timeline(training / "ours.json.gz")


def test_torch_and_we_have_the_same_base(training):
    ours = json.loads(gzip.decompress((training / "ours.json.gz").read_bytes()))
    theirs = json.loads((training / "torch.json").read_bytes())
    assert ours["baseTimeNanoseconds"] == theirs["baseTimeNanoseconds"]


def test_events_of_another_base_are_moved(training, tmp_path):
    theirs = json.loads((training / "torch.json").read_bytes())
    theirs["baseTimeNanoseconds"] -= 1_000_000
    (tmp_path / "torch.json").write_text(json.dumps(theirs))
    merge_traces([training / "ours.json.gz", tmp_path / "torch.json"], tmp_path / "both.json.gz")
    before, after = (
        slices(training / "ours.json.gz", "next()"),
        slices(tmp_path / "both.json.gz", "next()"),
    )
    for old, new in zip(before, after, strict=True):
        assert new["ts"] == pytest.approx(old["ts"] + 1000, abs=0.0015)


def test_two_loaders_of_one_process_keep_their_tracks(tmp_path):
    for name in ("train", "validation"):
        write_timeline(synthetic_timeline(4, 2), tmp_path / f"{name}.json")
    paths = [tmp_path / "train.json", tmp_path / "validation.json"]
    merge_traces(paths, tmp_path / "both.json")
    tracks = chrome_tracks(tmp_path / "both.json")
    assert len(tracks) == 2 * len(chrome_tracks(paths[0]))
    assert not [wrong for each in tracks.values() for wrong in overlaps(each)]
    with pytest.raises(TraceError, match="none of a loader"):
        read_timeline(tmp_path / "both.json")


def test_a_merged_trace_can_be_merged_with_another(training, tmp_path):
    merge_traces([training / "ours.json.gz", training / "torch.json"], tmp_path / "both.json")
    merge_traces([tmp_path / "both.json", training / "ours.json.gz"], tmp_path / "all.json")
    merged = json.loads((tmp_path / "all.json").read_text())["traceEvents"]
    named = [each["args"]["name"] for each in merged if each["name"] == "process_name"]
    assert sum(name.startswith("FusionLoader") for name in named) == 2


def test_the_command_merges_and_says_what_is_wrong(training, tmp_path, capsys):
    output = str(tmp_path / "both.json.gz")
    given = [str(training / "ours.json.gz"), str(training / "torch.json")]
    assert main(["trace-merge", *given, "-o", output]) == 0
    assert "ui.perfetto.dev" in capsys.readouterr().out
    old = tmp_path / "old.json"
    old.write_text('{"traceEvents": []}')
    assert main(["trace-merge", *given, str(old), "-o", output]) == 1
    assert "baseTimeNanoseconds" in capsys.readouterr().err
    old.write_text("")
    assert main(["trace-merge", str(old), "-o", output]) == 1
    assert "is empty" in capsys.readouterr().err
    assert main(["trace-merge", str(tmp_path / "none.json"), "-o", output]) == 1
    assert "none.json" in capsys.readouterr().err

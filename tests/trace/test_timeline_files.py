"""Timelines written and read again, and files that are none."""

import gzip
import json
import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loaders import chrome_tracks, overlaps, perfetto_tracks
from support.timelines import synthetic_timeline

from fusionloader.observe.trace import chrome_file, perfetto_file
from fusionloader.observe.trace.errors import TraceError
from fusionloader.observe.trace.files import read_timeline, write_timeline
from fusionloader.observe.trace.timeline import Copy, Meta, Span, Step, Timeline, Worker

ENDINGS = ["pftrace", "perfetto-trace", "json", "json.gz"]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("starved", [True, False])
def test_a_timeline_is_read_as_it_was_written(tmp_path, ending, starved):
    timeline = synthetic_timeline(30, 3, starved=starved)
    write_timeline(timeline, tmp_path / f"run.{ending}")
    assert read_timeline(tmp_path / f"run.{ending}") == timeline


def test_nanoseconds_survive_the_microseconds_of_json():
    for shift in range(0, 3000, 7):
        meta = Meta(1, 0, None, 4, 10**15 + shift, 10**15 + shift, 1_795_338_939_913_439_453)
        steps = (Step(0, 0, 0, 1, 10**15 + shift, None, 10**15 + 3 * shift + 1),)
        timeline = Timeline(meta, steps=steps)
        assert chrome_file.loaded(chrome_file.dumped(timeline)) == timeline


times = st.integers(0, 60)
parts = st.integers(0, 30)


@st.composite
def timelines(draw):
    """Values as bad as measurements may be: they overlap, and parts are longer than the whole."""
    start = 10**12

    def ends():
        begin = start + draw(times)
        return begin, begin + draw(times)

    spans = [
        Span(draw(st.integers(0, 1)), 9, 0, 0, 0, 0, 1, 4, 100, *ends(), *(draw(parts),) * 5)
        for _ in range(draw(st.integers(0, 8)))
    ]
    steps = []
    for _ in range(draw(st.integers(0, 6))):
        asked, delivered = ends()
        complete = draw(st.none() | st.integers(start - 50, start + 200))
        steps.append(Step(draw(st.integers(0, 1)), 0, 0, 4, asked, complete, delivered))
    copies = [Copy(0, 0, 0, 5, *ends()) for _ in range(draw(st.integers(0, 4)))]
    meta = Meta(9, 0, 4, 4, start, start + 99, 10**18, (Worker(0, "cpu"), Worker(1, "cpu")))
    return Timeline.in_order(meta, spans, steps, copies, (), ())


@settings(max_examples=40)
@given(timelines())
def test_no_slices_overlap_whatever_was_measured(tmp_path_factory, timeline):
    folder = tmp_path_factory.getbasetemp()
    for ending, found in (("json", chrome_tracks), ("pftrace", perfetto_tracks)):
        path = folder / f"any.{ending}"
        write_timeline(timeline, path)
        tracks = found(path)
        assert not [wrong for slices in tracks.values() for wrong in overlaps(slices)]
        back = read_timeline(path)
        assert sorted(back.spans, key=repr) == sorted(timeline.spans, key=repr)
        assert sorted(back.steps, key=repr) == sorted(timeline.steps, key=repr)


def test_slices_that_overlap_are_found():
    assert overlaps([(0, 5), (1, 3), (3, 5), (5, 9)]) == []
    assert overlaps([(0, 5), (3, 7)]) == [((0, 5), (3, 7))]


def test_a_perfetto_trace_says_its_clock_and_its_tracks(tmp_path):
    timeline = synthetic_timeline(3, 2)
    trace = perfetto_file.protos().Trace.FromString(perfetto_file.dumped(timeline))
    clocks = next(p.clock_snapshot for p in trace.packet if p.HasField("clock_snapshot"))
    monotonic, real = clocks.clocks
    assert clocks.primary_trace_clock == monotonic.clock_id == 3
    assert real.timestamp - monotonic.timestamp == timeline.meta.unix_ns
    names = [p.track_descriptor.name for p in trace.packet if p.HasField("track_descriptor")]
    expected = ["training", "copies to the device", "worker 0", "worker 1", "GPU worker"]
    assert [name for name in names if name in expected] == expected
    assert all(p.timestamp_clock_id == 3 for p in trace.packet if p.HasField("track_event"))


# ---- files that are none -----------------------------------------------------------------------


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_file_that_is_cut_off_says_so_wherever_it_is_cut(tmp_path, ending):
    path = tmp_path / f"run.{ending}"
    write_timeline(synthetic_timeline(3, 1), path)
    whole = path.read_bytes()
    for end in [1, 10, *range(50, len(whole), max(len(whole) // 40, 1)), len(whole) - 1]:
        path.write_bytes(whole[:end])
        with pytest.raises(TraceError, match=r"run\..*is cut off|but none of a loader"):
            read_timeline(path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_empty_file_says_so(tmp_path, ending):
    path = tmp_path / f"run.{ending}"
    path.touch()
    with pytest.raises(TraceError, match="is empty: its trace is still on"):
        read_timeline(path)


@pytest.mark.parametrize(
    ("name", "contents", "message"),
    [
        ("a.json", b"hello", "no JSON"),
        ("a.json", b"[1]", "no trace events"),
        ("a.json", b'{"traceEvents": []}', "none of a loader"),
        ("a.json", b'{"traceEvents": [], "fusionloader": {"pid": 1}}', "is damaged"),
        ("a.json.gz", b"hello", "not packed by gzip"),
        ("a.json.gz", gzip.compress(b"hello", mtime=0), "no JSON"),
        ("a.pftrace", b"hello", "no Perfetto trace"),
        ("a.pftrace", b"\x0a\x00", "none of a loader"),
        ("a.json", b"\xff\xfe\x00\x01", "no JSON"),
    ],
)
def test_a_foreign_file_says_so(tmp_path, name, contents, message):
    (tmp_path / name).write_bytes(contents)
    with pytest.raises(TraceError, match=message):
        read_timeline(tmp_path / name)


def test_a_damaged_event_says_so(tmp_path):
    path = tmp_path / "run.json"
    write_timeline(synthetic_timeline(3, 1), path)
    found = json.loads(path.read_bytes())
    next(each for each in found["traceEvents"] if each.get("cat") == "step")["args"].pop("batch")
    path.write_text(json.dumps(found))
    with pytest.raises(TraceError, match="is damaged: KeyError"):
        read_timeline(path)


def test_a_name_without_a_format_says_which_there_are(tmp_path):
    with pytest.raises(ValueError, match=r"\.pftrace, \.perfetto-trace, \.json, \.json\.gz"):
        read_timeline(tmp_path / "run.txt")


def test_perfettos_format_without_its_package_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "perfetto.protos.perfetto.trace", None)
    with pytest.raises(ImportError, match=r"pip install 'fusionloader\[trace\]'"):
        write_timeline(synthetic_timeline(1, 1), tmp_path / "run.pftrace")
    assert not os.listdir(tmp_path)
    write_timeline(synthetic_timeline(1, 1), tmp_path / "run.json")

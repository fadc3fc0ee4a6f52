"""What is sent between processes and machines, as bytes: one table of formats, one set of rules."""

import json
import math
from dataclasses import asdict
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fusionloader.cache.range_reading import FileStamp
from fusionloader.cache.servers import requests
from fusionloader.cache.servers.requests import MalformedRequest, Status, WantedFile
from fusionloader.sharing.jobs.sample_lists import SampleLists, first_items, identity, pack, unpack
from fusionloader.sharing.remote import protocol
from fusionloader.sharing.remote.protocol import MalformedMessage, WantedSample, WorkRequest

U8, U32, U63, U64 = (st.integers(0, (1 << bits) - 1) for bits in (8, 32, 63, 64))
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
COUNT = st.integers(1, (1 << 40) - 1)
TEXT, UTF8 = st.text(st.characters(), max_size=20), st.text(max_size=20)  # surrogates in the first
STAMPED = st.builds(WantedFile, U64, st.builds(FileStamp, U64, I64))
SAMPLES = st.lists(st.builds(WantedSample, U64, U64, U64, U32, U32), min_size=1, max_size=5)
FILES = [WantedFile(item, FileStamp(10 + item, 0)) for item in range(3)]


class Format(NamedTuple):
    """How values of a strategy become bytes and come back.

    Malformed bytes raise ``refusal``. No beginning of fewer than ``least`` bytes is a message.
    ``exact``: a value has one form.
    """

    values: st.SearchStrategy
    encode: Any
    decode: Any
    refusal: type[Exception]
    least: float = math.inf
    exact: bool = False


def as_json(kind, **fields):
    return Format(st.builds(kind, **fields), kind.encode, kind.decode, MalformedMessage)


@st.composite
def lists(draw):
    count = draw(st.integers(0, 20))
    kinds = (I64, U64, st.just(0) | U32, U32)
    items, *others = (draw(st.lists(kind, min_size=count, max_size=count)) for kind in kinds)
    if draw(st.booleans()) and min(items, default=0) >= 0:
        others[0] = items
    return SampleLists(items, *others)


def statuses_as_bytes(statuses):
    """With the size of the body before them."""
    hits = [each.stamp.nbytes for each, status in zip(FILES, statuses, strict=True) if not status]
    return bytes([sum(hits), *statuses])


def request_as_bytes(request):
    """With the size of the body before it."""
    body = sum(sample.body_bytes for sample in request.samples)
    digest = protocol.LAYOUT_BYTES if request.mode == protocol.DataMode.INDICES else 0
    return (digest + body).to_bytes(8, "little") + request.encode()


FORMATS = {
    "request to a cache server": Format(
        st.tuples(st.binary(min_size=32, max_size=32), st.lists(STAMPED, min_size=1, max_size=9)),
        lambda request: requests.encode(*request), requests.decode, MalformedRequest,
        least=56, exact=True,
    ),
    "statuses": Format(
        st.lists(st.sampled_from(Status), min_size=3, max_size=3), statuses_as_bytes,
        lambda raw: requests.decode_statuses(raw[1:], FILES, raw[0] if raw else -1),
        MalformedRequest, exact=True,
    ),
    "setup": as_json(
        protocol.Setup, version=TEXT, plan=st.dictionaries(TEXT, TEXT, max_size=2),
        row_bytes=COUNT, pillow=TEXT, max_pixels=st.none() | COUNT,
        image=st.none() | st.tuples(COUNT, COUNT, COUNT),
        known_files=st.lists(st.builds(protocol.RemoteFileKey, TEXT, COUNT, TEXT)).map(tuple),
    ),
    "setup of code": as_json(
        protocol.CodeSetup, version=TEXT, digest=TEXT, base_seed=U63, workers=COUNT,
        packages=st.dictionaries(TEXT, TEXT, max_size=2),
    ),
    "ready": as_json(protocol.Ready, name=TEXT, cores=COUNT),
    "work request": Format(
        st.builds(WorkRequest, U64, U64, U64, st.sampled_from(protocol.DataMode), SAMPLES),
        request_as_bytes,
        lambda raw: WorkRequest.decode(raw[8:], int.from_bytes(raw[:8], "little")),
        MalformedMessage,
    ),
    "range": Format(
        st.tuples(U64, U64, st.binary(max_size=20)), lambda place: protocol.encode_range(*place),
        protocol.decode_range, MalformedMessage, least=16, exact=True,
    ),
    "rows": Format(
        st.builds(protocol.Rows, U64, U64, U64), protocol.Rows.encode, protocol.Rows.decode,
        MalformedMessage, exact=True,
    ),
    "declined": Format(
        st.builds(protocol.Declined, U64, st.sampled_from(protocol.Reason), UTF8),
        protocol.Declined.encode, protocol.Declined.decode, MalformedMessage, least=9,
    ),
    "sample lists": Format(lists(), pack, unpack, ValueError),
}  # fmt: skip
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT | st.sampled_from([0, -1, 1 << 70, 0.5]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)


def assert_read_or_refused(wire, raw, may_be_read=True):
    try:
        found = wire.decode(raw)
    except wire.refusal:
        return
    assert may_be_read
    again = wire.encode(found)
    assert wire.decode(again) == found
    assert again == raw or not wire.exact


@pytest.mark.few(5)
@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=50)
@given(st.data())
def test_values_come_back_as_they_were_and_are_refused_cut_off_anywhere(name, data):
    wire = FORMATS[name]
    value = data.draw(wire.values)
    raw = wire.encode(value)
    assert wire.decode(raw) == value
    for end in range(len(raw)):
        assert_read_or_refused(wire, raw[:end], end >= wire.least)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=50)
@given(st.data(), st.lists(st.tuples(U32, U8), min_size=1, max_size=3))
def test_bytes_that_were_changed_are_read_or_refused(name, data, changes):
    wire = FORMATS[name]
    raw = bytearray(data.draw(wire.values.map(wire.encode) | st.binary(min_size=1, max_size=200)))
    for place, value in changes:
        raw[place % len(raw)] = value
    assert_read_or_refused(wire, bytes(raw))


@pytest.mark.parametrize("name", ["setup", "setup of code", "ready"])
@settings(max_examples=50)
@given(st.data())
def test_fields_of_any_type_are_read_or_refused(name, data):
    wire = FORMATS[name]
    fields = json.loads(wire.encode(data.draw(wire.values)))
    fields[data.draw(st.sampled_from(list(fields)))] = data.draw(JSON)
    assert_read_or_refused(wire, json.dumps(fields).encode())


def work(mode, count):
    return request_as_bytes(WorkRequest(1, 2, 3, mode, [WantedSample(0, 0, 0, 0, 0)] * count))


def samples(count):
    return requests.encode(bytes(32), FILES[:1] * count)


CODE = asdict(protocol.CodeSetup("1", "", {}, 1, 1))
SETUPS = [
    {"packages": [1]}, {"packages": {"a": 1}}, {"base_seed": -1}, {"base_seed": 1 << 63},
    {"workers": 0}, {"workers": True}, {"version": 1}, {"code": "gASVEAAAAAAAAAA"},
]  # fmt: skip
MOST_ITEMS, MOST_SAMPLES = requests.MOST_ITEMS, protocol.MOST_SAMPLES
OUT_OF_BOUNDS = {
    "request to a cache server": [samples(0), samples(MOST_ITEMS + 1)],
    "statuses": [b"\0\1\1", b"\0\1\1\1\1", b"\0\1\1\3", bytes(4)],
    "setup": [b"[" * 100_000, b"[]", b"{}"],
    "setup of code": [json.dumps(CODE | change).encode() for change in SETUPS],
    "ready": [b'{"name": 1, "cores": 1}', b'{"name": "", "cores": 1099511627776}'],
    "work request": [work(0, 0), work(0, MOST_SAMPLES + 1), work(9, 1), b"\1" + work(0, 1)[1:]],
    "rows": [bytes(25)],
    "declined": [bytes(8) + b"\2"],
}


@pytest.mark.parametrize("name", OUT_OF_BOUNDS)
def test_what_is_out_of_bounds_is_refused(name):
    for raw in OUT_OF_BOUNDS[name]:
        with pytest.raises(FORMATS[name].refusal):
            FORMATS[name].decode(raw)


def test_as_many_samples_as_are_allowed_are_read():
    assert len(requests.decode(samples(MOST_ITEMS)).wanted) == MOST_ITEMS
    assert len(FORMATS["work request"].decode(work(0, MOST_SAMPLES)).samples) == MOST_SAMPLES


def test_a_fingerprint_has_32_bytes():
    with pytest.raises(ValueError, match="32 bytes, not 31"):
        requests.encode(bytes(31), [])


@given(lists(), st.randoms(use_true_random=False))
def test_the_order_of_rows_makes_no_difference_and_all_else_does(samples, random):
    rows = list(samples.rows)
    random.shuffle(rows)
    same = identity(pack(samples))
    assert identity(pack(samples._replace(rows=rows))) == same
    if samples.items:
        last = samples.occurrences[-1]
        other = samples._replace(occurrences=[*samples.occurrences[:-1], last ^ 1])
        assert identity(pack(other)) != same


@pytest.mark.parametrize("count", range(7))
def test_the_first_items_can_be_read_of_what_is_shown(count):
    items = list(range(5, 5 + count))
    packed = pack(SampleLists(items, items, [1] * count, items))
    assert first_items(identity(packed)[:256]) == items[:4]

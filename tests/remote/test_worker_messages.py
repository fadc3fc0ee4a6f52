"""Whatever a connection sends, a worker's session answers: no message raises."""

import json
import os
import threading
from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.worker_client import setup_of

from fusionloader.sharing.remote import protocol
from fusionloader.sharing.remote.protocol import (
    DataMode,
    Ready,
    RemoteFileKey,
    WantedSample,
    WorkRequest,
)
from fusionloader.sharing.remote.worker.worker_session import WorkerSession
from fusionloader.system.transport.messages import REFUSED, Message, Outgoing
from fusionloader.transforms.plan.stages import Plan, Resize

PLAN = Plan((Resize(4, 5, "box"),), None, 4, 5)
IMAGE = (2, 3, 3)
ANSWERS = {protocol.READY, protocol.ROWS, protocol.DECLINED, REFUSED}
TEXT = st.text(st.characters(), max_size=20)  # lone surrogates too
PATHS = TEXT.map(lambda text: f"/{text}")


def session():
    made = WorkerSession(Ready("a worker", 1), threading.BoundedSemaphore(1), lambda done: None)
    ready = made.answer(Message(protocol.SETUP, setup_of(PLAN, image=IMAGE).encode()))
    assert ready.kind == protocol.READY
    return made


SESSION = session()


def assert_answered(kind, head, body=b""):
    answer = SESSION.answer(Message(kind, head, memoryview(body)))
    assert isinstance(answer, Outgoing) and answer.kind in ANSWERS
    return answer


@given(st.integers(0, 40), st.binary(max_size=200), st.binary(max_size=50))
def test_any_message_is_answered(kind, head, body):
    assert assert_answered(kind, head, body).kind == REFUSED


FIELDS = {
    "version": TEXT,
    "pillow": TEXT,
    "plan": st.dictionaries(TEXT, TEXT, max_size=2),
    "row_bytes": st.integers(),
    "image": st.none() | st.lists(st.integers(-1, 5), max_size=4),
    "known_files": st.lists(
        st.builds(RemoteFileKey, PATHS | TEXT, st.integers(0, 10), TEXT).map(asdict), max_size=2
    ),
}


@given(st.fixed_dictionaries({}, optional=FIELDS))
def test_any_fields_of_a_setup_are_answered(changed):
    fields = json.loads(setup_of(PLAN, image=IMAGE).encode()) | changed
    answer = assert_answered(protocol.SETUP, json.dumps(fields).encode())
    if answer.kind == REFUSED:
        answer.head.decode()
        assert (
            assert_answered(protocol.PREPARE, _request(DataMode.ENCODED, [b"x"]), b"x").kind
            == REFUSED
        )
    assert_answered(protocol.SETUP, setup_of(PLAN, image=IMAGE).encode())


def _request(mode, data):
    samples = [WantedSample(1 << 63, 5, 0, 2, len(each)) for each in data]
    return WorkRequest(1, 2, 3, mode, samples).encode()


@given(
    st.sampled_from(DataMode),
    st.lists(st.binary(max_size=20) | st.just(bytes(18)) | st.just(b"/dev/zero"), min_size=1),
    st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=2),
)
def test_any_request_is_answered(mode, data, changes):
    head = bytearray(_request(mode, data))
    for place, value in changes:
        head[place % len(head)] = value
    assert_answered(protocol.PREPARE, bytes(head), b"".join(data))


@pytest.mark.parametrize("path", [b"/dev/zero", b"/dev/null", b"/proc", b"/\0", b"/\xff"])
def test_only_regular_files_are_read(path):
    SESSION.answer(Message(protocol.SETUP, setup_of(PLAN).encode()))
    answer = assert_answered(protocol.PREPARE, _request(DataMode.PATHS, [path]), path)
    declined = protocol.Declined.decode(answer.head)
    assert declined.reason is protocol.Reason.DATA
    assert declined.text.startswith(repr(os.fsdecode(path)))

"""Payloads between jobs and the coordinator, whatever their size."""

import os
import socket

import pytest

from fusionloader.sharing.jobs import payloads


@pytest.fixture
def ends():
    first, second = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with first, second:
        second.setblocking(False)
        yield first, second


@pytest.mark.parametrize("size", [0, 1, 32 << 10, (32 << 10) + 1, 3 << 20])
def test_they_arrive_whole_with_the_descriptors_beside_them(ends, size):
    payload = os.urandom(size)
    read, write = os.pipe()
    payloads.send(ends[0], {"number": 3}, payload, (write,))
    os.close(write)
    message = payloads.receive(ends[1])
    assert message.fields["number"] == 3 and message.payload == payload
    (sent,) = message.fds
    os.write(sent, b"here")
    assert os.read(read, 10) == b"here"
    message.close()
    os.close(read)


def test_nothing_yet_and_the_end_are_told_apart(ends):
    with pytest.raises(BlockingIOError):
        payloads.receive(ends[1])
    ends[0].close()
    assert payloads.receive(ends[1]) is None

"""Messages with descriptors: what malformed ones come to."""

import contextlib
import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.other_users import as_nobody, as_root

from fusionloader.sharing.jobs import payloads
from fusionloader.system import fd_messages

SIZES = [0, 1, 32 << 10, (32 << 10) + 1, 3 << 20]  # the larger ones are sent as shared memory


@contextlib.contextmanager
def connected():
    with contextlib.ExitStack() as stack:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in ends:
            stack.enter_context(end)
            end.setblocking(False)
        yield ends


@pytest.mark.parametrize(
    ("receive", "payload"),
    [(fd_messages.receive, b"\n{"), *((payloads.receive, os.urandom(size)) for size in SIZES)],
    ids=["short", *map(str, SIZES)],
)
def test_fields_payload_and_descriptors_arrive(receive, payload):
    with connected() as (here, there):
        null = os.open("/dev/null", os.O_RDONLY)
        payloads.send(here, {"do": "x"}, payload, (null, null))
        got = receive(there)
        assert (got.fields["do"], got.payload, len(got.fds)) == ("x", payload, 2)
        assert all(os.path.samestat(os.fstat(fd), os.fstat(null)) for fd in got.fds)
        assert not any(os.get_inheritable(fd) for fd in got.fds)
        got.close()
        os.close(null)


def test_nothing_yet_and_the_end_are_told_apart():
    with connected() as (here, there):
        with pytest.raises(BlockingIOError):
            payloads.receive(there)
        here.close()
        assert payloads.receive(there) is None


@pytest.mark.parametrize("deep", [b"[" * 100_000, b'{"a":' * 30_000])
def test_deep_nesting_is_malformed(deep):
    with connected() as (here, there):
        here.send(deep)
        assert fd_messages.receive(there) is None


@given(st.binary(max_size=200), st.integers(0, 8))
def test_any_bytes_are_a_message_or_none_and_leak_no_descriptor(raw, count):
    with connected() as (here, there):
        before = len(os.listdir("/proc/self/fd"))
        socket.send_fds(here, [raw or b" "], [here.fileno()] * count)
        got = fd_messages.receive(there)
        if got is not None:
            assert isinstance(got.fields, dict) and len(got.fds) == count
            got.close()
        assert len(os.listdir("/proc/self/fd")) == before


@as_root
def test_who_has_bound_the_name_as_another_user_is_not_spoken_to():
    address = f"fusionloader-test-{os.getpid()}"
    squatter = fd_messages.make_socket()

    def bind():
        squatter.bind("\0" + address)
        squatter.listen()
        return 7

    with squatter:
        assert as_nobody(bind) == 7
        assert fd_messages.connect(address, 1.0) is None


@as_root
def test_another_user_who_connects_is_known_as_one():
    address = f"fusionloader-test-{os.getpid()}"
    with fd_messages.listen(address, 1) as listener:

        def connect():
            with fd_messages.make_socket() as connection:
                connection.connect("\0" + address)
            return 7

        assert as_nobody(connect) == 7
        stranger, _ = listener.accept()
        with stranger:
            assert not fd_messages.is_same_user(stranger)

"""A service by itself: the test is its peers, and a thread runs its loop."""

import contextlib
import errno
import os
import secrets
import threading

import pytest
from support.waiting import PATIENCE, wait_until

from fusionloader.system import fd_messages
from fusionloader.system.fd_messages import FdMessage
from fusionloader.system.local_service import LocalPeer, LocalService


class Echo(LocalService[LocalPeer]):
    name = "the echo"
    last_seconds = 0.1

    def __init__(self, listener):
        super().__init__(listener, LocalPeer)
        self.gone = []

    def handle(self, peer, message):
        return peer.reply(message.fields) and message.fields.get("stay", True)

    def left(self, peer):
        self.gone.append(peer.pid)


@contextlib.contextmanager
def echo():
    """A service, and a function that connects to it."""
    address = f"fusionloader-test-{secrets.token_hex(8)}"
    service = Echo(fd_messages.listen(address, 16))
    thread = threading.Thread(target=service.serve)
    thread.start()
    with contextlib.ExitStack() as stack:

        def connect():
            connection = fd_messages.connect(address, PATIENCE)
            return stack.enter_context(connection)

        service.thread = thread
        yield service, connect
        if thread.is_alive():
            service.end()
            connect()  # wakes the loop
        thread.join(PATIENCE)
        service.close()


def asked(connection, fields):
    fd_messages.send(connection, FdMessage(fields))
    return fd_messages.receive(connection)


@pytest.mark.parametrize("error", [None, errno.ENOSYS, errno.EMFILE, "no function"])
def test_peers_are_served_and_leave_with_or_without_a_pidfd(monkeypatch, error):
    def refused(pid):
        raise OSError(error, os.strerror(error))

    if error == "no function":
        monkeypatch.delattr(os, "pidfd_open")
    elif error is not None:
        monkeypatch.setattr(os, "pidfd_open", refused)
    with echo() as (service, connect):
        first, second = connect(), connect()
        for number in range(200):
            assert asked(first, {"number": number}).fields == {"number": number}
        assert asked(second, {"stay": False}).fields == {"stay": False}
        assert fd_messages.receive(second) is None
        first.close()
        wait_until(lambda: service.gone == [os.getpid()] * 2)


def test_a_service_ends_when_it_has_had_no_peer_for_a_while():
    with echo() as (service, connect):
        connect().close()
        service.thread.join(PATIENCE)
        assert service.gone == [os.getpid()] and not service.thread.is_alive()


def test_a_peer_that_does_not_read_is_removed():
    with echo() as (service, connect):
        deaf, other = connect(), connect()
        deaf.setblocking(False)

        def is_removed():
            with contextlib.suppress(OSError):  # it is full, or removed
                while True:
                    fd_messages.send(deaf, FdMessage({"text": "x" * 5000}))
            return service.gone

        wait_until(is_removed)
        assert asked(other, {"number": 1}).fields == {"number": 1}

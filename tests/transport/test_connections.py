"""Connections between processes with the same token, and with others."""

import contextlib
import socket
import ssl
import threading
import tracemalloc
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.waiting import PATIENCE, wait_until

from fusionloader.system.transport import connection, messages
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.connection import Connection, connect
from fusionloader.system.transport.errors import TransportError
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.listener import Listener, Service
from fusionloader.system.transport.messages import Outgoing

HOST = "127.0.0.2"
KIND = messages.FIRST_OF_SERVICE
TOKEN = b"a token that all know"


def echo(message):
    return Outgoing(message.kind, message.head, [bytes(message.body)])


@contextlib.contextmanager
def listening(answer=echo, token=TOKEN, most_body=messages.MOST_BODY, **limits):
    services = {"echo 1": Service(lambda: answer, most_body)}
    with contextlib.closing(
        Listener(Address(HOST, 0), Identity.of(token), services, **limits)
    ) as found:
        yield found.address


def connected(address, token=TOKEN, service="echo 1"):
    return contextlib.closing(connect(address, Identity.of(token), service, PATIENCE))


def exchange(end, head, *body):
    end.send(Outgoing(KIND, head, body), PATIENCE)
    answer = end.receive(PATIENCE, PATIENCE)
    assert answer.kind == KIND
    return answer.head, bytes(answer.body)


BODIES = [[], [b"one"], [b"one", bytearray(b"two"), memoryview(b"three")], [bytes(5_000_000)] * 3]


@pytest.mark.parametrize("parts", BODIES)
@pytest.mark.parametrize("beyond", [False, True], ids=["loopback", "beyond"])
def test_messages_arrive_as_they_were_sent(monkeypatch, parts, beyond):
    if beyond:
        monkeypatch.setattr(connection, "is_loopback", lambda _: False)
    with listening() as address, connected(address) as end:
        assert end.encrypted == beyond
        for head in (b"", b"head"):
            assert exchange(end, head, *parts) == (head, b"".join(parts))


def test_a_long_message_may_take_longer_than_the_time_to_send_beyond_loopback(monkeypatch):
    """TLS has one timeout for all that a call sends, so no call sends more than takes a moment."""
    monkeypatch.setattr(connection, "is_loopback", lambda _: False)
    sizes, sendall = [], ssl.SSLSocket.sendall

    def sized(end, data):
        sizes.append(len(data))
        sendall(end, data)

    monkeypatch.setattr(ssl.SSLSocket, "sendall", sized)
    with listening() as address, connected(address) as end:
        body = bytes(range(256)) * 5000
        assert exchange(end, b"head", body) == (b"head", body)
    assert max(sizes) <= 1 << 18


def test_a_listener_that_waits_holds_no_answer():
    class Answer(bytearray):
        """Has weak references."""

    answers = [Answer(b"body")]
    answered = weakref.ref(answers[0])
    serving = listening(lambda _: Outgoing(KIND, b"", [answers.pop()]))
    with serving as address, connected(address) as end:
        assert exchange(end, b"head") == (b"", b"body")
        wait_until(lambda: answered() is None, "the answer is still held")


def test_one_end_that_is_not_on_loopback_is_enough_to_encrypt(monkeypatch):
    answers = iter([True, False])
    monkeypatch.setattr(connection, "is_loopback", lambda _: next(answers))
    with listening() as address, connected(address) as end:
        assert end.encrypted
        assert exchange(end, b"head") == (b"head", b"")


def recorded(monkeypatch, beyond):
    """All bytes that a request and its answer are on the wire."""
    if beyond:
        monkeypatch.setattr(connection, "is_loopback", lambda _: False)
    seen = bytearray()

    def pass_on(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                seen.extend(data)
                target.sendall(data)

    with listening() as address, socket.create_server((HOST, 0)) as between:
        ends = []

        def relay():
            client, server = between.accept()[0], socket.create_connection(address)
            ends.extend((client, server))
            threading.Thread(target=pass_on, args=(server, client), daemon=True).start()
            pass_on(client, server)

        thread = threading.Thread(target=relay, daemon=True)
        thread.start()
        with connected(Address(*between.getsockname())) as end:
            assert exchange(end, b"secret head", b"secret body") == (b"secret head", b"secret body")
        thread.join()
        for end in ends:
            end.close()
    return bytes(seen)


def test_beyond_loopback_nobody_in_between_can_read(monkeypatch):
    assert recorded(monkeypatch, beyond=False).count(b"secret") == 4
    assert b"secret" not in recorded(monkeypatch, beyond=True)


@pytest.mark.parametrize(
    ("token", "service", "why"),
    [
        (b"a token of somebody else", "echo 1", "has another token"),
        (TOKEN, "echo 2", "is 'echo 1', not 'echo 2'"),
    ],
)
def test_others_are_refused_by_both_ends(token, service, why):
    heard = []
    with listening(heard.append) as address:
        with pytest.raises(TransportError, match=why):
            connect(address, Identity.of(token), service, PATIENCE)
        with connected(address):
            pass  # the listener goes on
    assert heard == []


def test_services_of_one_listener_are_told_apart_and_keep_a_state_per_connection():
    def counting(name):
        def begin():
            heard = []

            def answer(message):
                heard.append(message)
                return Outgoing(KIND, f"{name} {len(heard)}".encode())

            return answer

        return begin

    services = {"echo 1": Service(counting("a")), "echo 2": Service(counting("b"), most_body=1)}
    with contextlib.closing(Listener(Address(HOST, 0), Identity.of(TOKEN), services)) as listener:
        with (
            connected(listener.address) as first,
            connected(listener.address) as second,
            connected(listener.address, service="echo 2") as other,
        ):
            assert [exchange(end, b"")[0] for end in (first, first, second, other)] == [
                b"a 1",
                b"a 2",
                b"a 1",
                b"b 1",
            ]
            other.send(Outgoing(KIND, b"", [b"ab"]), PATIENCE)
            with pytest.raises(TransportError, match="closed"):
                other.receive(PATIENCE, PATIENCE)
        with pytest.raises(TransportError, match="is 'echo 1, echo 2', not 'echo 3'"):
            connect(listener.address, Identity.of(TOKEN), "echo 3", PATIENCE)


def test_a_listener_waits_for_what_is_being_answered():
    may, asked = threading.Event(), threading.Event()

    def answer(message):
        asked.set()
        assert may.wait(PATIENCE)
        return echo(message)

    with contextlib.closing(
        Listener(Address(HOST, 0), Identity.of(TOKEN), {"echo 1": Service(lambda: answer)})
    ) as listener:
        assert listener.wait_until_answered(0)
        with connected(listener.address) as end:
            end.send(Outgoing(KIND, b"x"), PATIENCE)
            assert asked.wait(PATIENCE)
            assert not listener.wait_until_answered(0.01)
            may.set()
            assert end.receive(PATIENCE, PATIENCE).head == b"x"
            assert listener.wait_until_answered(PATIENCE)
            end.send(Outgoing(KIND, b"y"), PATIENCE)
        assert listener.wait_until_answered(PATIENCE)  # the other end has gone


def test_a_listener_does_not_answer_who_does_not_check_it():
    """A client that trusts anybody, and has no certificate to show."""
    import ssl

    heard = []
    with listening(heard.append) as address:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(address) as raw,
            context.wrap_socket(raw) as end,
            contextlib.suppress(OSError, TransportError),
        ):
            Connection(end).send(Outgoing(messages.HELLO, b'{"service": "echo 1"}'), PATIENCE)
            end.sendall(messages.pack(Outgoing(KIND)))
            assert end.recv(1) == b""
    assert heard == []


@settings(max_examples=15)
@given(st.binary(max_size=200))
def test_any_bytes_instead_of_a_greeting_do_no_harm(address_of_echo, data):
    with socket.create_connection(address_of_echo) as raw:
        raw.sendall(data)
    with connected(address_of_echo) as end:
        assert exchange(end, b"x") == (b"x", b"")


@pytest.fixture(scope="module")
def address_of_echo():
    with listening() as address:
        yield address


@pytest.mark.parametrize("header", [b"x" * messages.HEADER_BYTES, b"FuL1" + b"\xff" * 16])
def test_what_is_no_message_ends_the_connection(address_of_echo, header):
    with connected(address_of_echo) as end:
        end._socket.sendall(header)
        with pytest.raises(TransportError, match="closed"):
            end.receive(PATIENCE, PATIENCE)


def test_a_request_that_is_too_long_is_not_read():
    with listening(most_body=100) as address, connected(address) as end:
        assert exchange(end, b"", bytes(100)) == (b"", bytes(100))
        end.send(Outgoing(KIND, b"", [bytes(101)]), PATIENCE)
        with pytest.raises(TransportError, match="closed"):
            end.receive(PATIENCE, PATIENCE)


@pytest.mark.parametrize("begun", [0, 3_000_000])
def test_an_announced_length_takes_no_memory_before_its_bytes_arrive(begun):
    ours, theirs = socket.socketpair()
    with contextlib.closing(Connection(theirs)) as end:
        with ours:
            ours.sendall(messages.pack(Outgoing(KIND))[:-8] + (1 << 28).to_bytes(8, "little"))
            sending = threading.Thread(target=ours.sendall, args=(bytes(begun),))
            sending.start()
            tracemalloc.start()
            beginning = end.receive_beginning(PATIENCE)
            assert beginning.body_bytes == 1 << 28
            threading.Thread(target=lambda: (sending.join(), ours.shutdown(socket.SHUT_WR))).start()
            with pytest.raises(TransportError, match="closed"):
                end.receive_rest(beginning, PATIENCE)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < 8 * begun + (4 << 20)


def test_nothing_listens_at_a_wrong_address():
    with socket.create_server((HOST, 0)) as taken:
        address = Address(*taken.getsockname())
    with pytest.raises(TransportError, match="cannot be reached .Connection refused"):
        connect(address, Identity.of(TOKEN), "echo 1", PATIENCE)
    with pytest.raises(TransportError, match="has a name that is not known here"):
        connect(Address("no-such-host.invalid", 1), Identity.of(TOKEN), "echo 1", PATIENCE)


def test_a_listener_with_a_name_is_reached_at_all_addresses_of_the_machine():
    with contextlib.closing(
        Listener(Address("localhost", 0), Identity.of(TOKEN), {"echo 1": Service(lambda: echo)})
    ) as listener:
        assert listener.address.host == "localhost"
        with connected(Address("127.0.0.5", listener.address.port)) as end:
            assert exchange(end, b"x") == (b"x", b"")


def test_who_listens_and_says_nothing_is_not_waited_for():
    with (
        socket.create_server((HOST, 0)) as silent,
        pytest.raises(TransportError, match="does not answer in time"),
    ):
        connect(Address(*silent.getsockname()), Identity.of(TOKEN), "echo 1", 0.05)


def test_another_service_at_the_address_is_told():
    with socket.create_server((HOST, 0)) as other:

        def answer():
            with other.accept()[0] as end:
                end.recv(1)
                end.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                with contextlib.suppress(OSError):
                    while end.recv(1 << 16):
                        pass

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        with pytest.raises(TransportError, match="does not speak TLS as expected|has closed"):
            connect(Address(*other.getsockname()), Identity.of(TOKEN), "echo 1", PATIENCE)
        thread.join()


def test_further_connections_than_there_may_be_are_closed():
    with listening(most_connections=1) as address:
        with connected(address) as end:
            with pytest.raises(TransportError, match="closed"):
                connect(address, Identity.of(TOKEN), "echo 1", PATIENCE)
            assert exchange(end, b"x") == (b"x", b"")
        wait_until(lambda: _answers(address), "its place is not free again")


def _answers(address):
    try:
        with connected(address) as end:
            return exchange(end, b"y") == (b"y", b"")
    except TransportError:
        return False


def test_a_listener_that_is_closed_leaves_no_threads():
    before = set(threading.enumerate())
    with listening() as address:
        with socket.create_connection(address), connected(address) as end:  # one is a stranger
            assert exchange(end, b"x") == (b"x", b"")
            wait_until(lambda: len({*threading.enumerate()} - before) >= 3, "nobody serves")
        with connected(address):
            pass
    assert set(threading.enumerate()) <= before


def test_a_client_that_does_not_read_takes_no_memory():
    """The next request is read when the answer to the one before has been taken."""
    answered = []

    def answer(message):
        answered.append(message.kind)
        return Outgoing(KIND, b"", [bytes(50_000_000)])

    with listening(answer) as address, connected(address) as end:
        for _ in range(20):
            end.send(Outgoing(KIND), PATIENCE)
        assert len(end.receive(PATIENCE, PATIENCE).body) == 50_000_000
        assert len(answered) <= 2

"""How addresses are written, and which are this machine's."""

import pytest

from fusionloader.system.transport.address import Address, is_own


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("hostA:7071", "hostA", 7071), ("127.0.0.2:0", "127.0.0.2", 0), ("[::1]:65535", "::1", 65535)],
)
def test_an_address_is_a_host_and_a_port(text, host, port):
    found = Address.parse(text)
    assert found == (host, port) and str(found) == text


@pytest.mark.parametrize("text", ["", "host", ":1", "host:", "host:x", "host:65536", "host:-1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ValueError, match='written as "host:port", not'):
        Address.parse(text)


def test_own_hosts_are_told_from_others():
    assert is_own("127.0.0.7") and is_own("localhost")
    assert not is_own("192.0.2.1")  # set aside for documentation (RFC 5737)
    with pytest.raises(ValueError, match="'no-such-host.invalid' is not known here"):
        is_own("no-such-host.invalid")

"""Peers without the token that connect and stay silent: others are served meanwhile."""

import contextlib
import re
import signal
import socket
import subprocess
import sys

import pytest
from support.waiting import PATIENCE

from fusionloader.sharing.remote import protocol
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.connection import connect
from fusionloader.system.transport.errors import TransportError
from fusionloader.system.transport.identity import Identity

TOKEN = b"a token that all know"
STRANGERS = 70

# Threads have stacks so large that the address space takes a few of them.
FEW_THREADS = """
import resource, sys, threading
from fusionloader.__main__ import main
threading.stack_size(1 << 28)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 28),) * 2)
sys.exit(main(sys.argv[1:]))
"""


@contextlib.contextmanager
def limited_worker(folder, limit, *start):
    """A worker process under a limit, and its address."""
    token = folder / "token"
    token.touch(0o600)
    token.write_bytes(TOKEN)
    command = [*start, "worker", "--listen", "127.0.0.2:0", "--token-file", str(token)]
    with subprocess.Popen(
        ["sh", "-c", f'{limit}; exec "$@"', "sh", sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process, Address.parse(re.match(r"listening at (\S+),", _line(process))[1])
        finally:
            process.kill()


def _line(process):
    return process.stdout.readline() or process.communicate()[1]


def connected(address):
    """A connection with the token; as loaders do, it is tried until it works."""
    while True:
        with contextlib.suppress(TransportError):
            return connect(address, Identity.of(TOKEN), protocol.SERVICE, PATIENCE)


@pytest.mark.parametrize(
    ("limit", "start"),
    [("ulimit -n 64", ("-m", "fusionloader")), ("true", ("-c", FEW_THREADS))],
    ids=["open files", "threads"],
)
def test_strangers_keep_nobody_from_a_worker(tmp_path, limit, start):
    with limited_worker(tmp_path, limit, *start) as (process, address):
        with contextlib.ExitStack() as strangers:
            for _ in range(STRANGERS):
                strangers.enter_context(socket.create_connection(address))
            connected(address).close()
        with contextlib.closing(connected(address)):
            process.send_signal(signal.SIGTERM)
            out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (0, ""), out

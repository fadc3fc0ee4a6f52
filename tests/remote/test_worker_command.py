"""``python -m fusionloader worker``: processes of its own, ended by real signals."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys

import numpy as np
import pytest
from support.images import photo
from support.waiting import PATIENCE, wait_until
from support.worker_client import WorkerClient, prepared_here, setup_of

from fusionloader.sharing.remote.protocol import DataMode
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.errors import TransportError
from fusionloader.system.transport.identity import read_token
from fusionloader.system.transport.tokens import default_token_file
from fusionloader.transforms.plan.stages import Plan, RandomResizedCrop, Resize

HOST = "127.0.0.3"
PLAN = Plan((RandomResizedCrop(32, 24, (0.3, 1.0), (0.75, 1.33), ("bilinear",)),), None, 32, 24)
LARGE = Plan((Resize(4000, 4000, "box"),), None, 4000, 4000)  # 48 MB do not fit the sockets


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config"


def worker(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "fusionloader", "worker", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(*arguments):
    with worker(*arguments) as process:
        out, errors = process.communicate(timeout=PATIENCE)
        return process.returncode, out, errors


@pytest.fixture
def token():
    assert ended("--init")[0] == 0
    return read_token(default_token_file())


@contextlib.contextmanager
def serving(*arguments):
    """A process that listens, and its address."""
    with worker("--listen", f"{HOST}:0", *arguments) as process:
        try:
            line = process.stdout.readline()
            match = re.fullmatch(r"listening at (\S+), (\d+) cores\n", line)
            assert match, process.communicate(timeout=PATIENCE)
            yield process, Address.parse(match[1]), int(match[2])
        finally:
            process.kill()


def encoded_photo(folder):
    path = folder / "photograph.jpg"
    photo(np.random.default_rng(0), 90, 70).save(path)
    return path


def test_a_worker_process_prepares_without_torch_and_ends_by_a_signal(token, tmp_path):
    path = encoded_photo(tmp_path)
    for number in (signal.SIGTERM, signal.SIGINT):
        with serving("--cores", 3, "--cache", "1MiB") as (process, address, cores):
            assert cores == 3 and address.host == HOST
            with contextlib.closing(WorkerClient(address, token)) as client:
                assert client.set_up(setup_of(PLAN)).cores == 3
                assert client.prepare_files([path]) == prepared_here(PLAN, [path.read_bytes()])
                with open(f"/proc/{process.pid}/maps") as maps:
                    assert "torch" not in maps.read()
                process.send_signal(number)
                out, errors = process.communicate(timeout=PATIENCE)
            assert (process.returncode, errors) == (0, "")
            assert out == "prepared 1 samples; declined 0 requests\n"


def test_an_answer_that_is_under_way_is_sent_before_the_end(token):
    with serving() as (process, address, cores):
        assert cores == len(os.sched_getaffinity(0))
        with contextlib.closing(WorkerClient(address, token)) as client:
            client.set_up(setup_of(LARGE, image=(16, 16, 3)))
            client.send(DataMode.PIXELS, [bytes(768)])
            wait_until(lambda: _has_begun_to_answer(client))
            process.terminate()
            assert len(client.hear().body) == 48_000_000
            assert process.wait(PATIENCE) == 0


def _has_begun_to_answer(client):
    return select.select([client.connection], [], [], 0)[0]


def test_a_loader_that_does_not_read_does_not_keep_a_worker_from_ending(token):
    with (
        serving() as (process, address, _),
        contextlib.closing(WorkerClient(address, token)) as client,
    ):
        client.set_up(setup_of(LARGE, image=(16, 16, 3)))
        client.send(DataMode.PIXELS, [bytes(768)])
        wait_until(lambda: _has_begun_to_answer(client))
        process.terminate()
        assert process.wait(PATIENCE) == 0
        with pytest.raises(TransportError, match="closed"):
            client.hear()


def test_a_killed_worker_is_noticed_at_once(token):
    with serving() as (process, address, _):
        with contextlib.closing(WorkerClient(address, token)) as client:
            client.set_up(setup_of(PLAN))
            process.kill()
            with pytest.raises(TransportError, match="closed"):
                client.prepare(DataMode.ENCODED, [b"no image"])
        process.wait(PATIENCE)
        with pytest.raises(TransportError, match="Connection refused"):
            WorkerClient(address, token)


# ---- tokens ------------------------------------------------------------------------------------


def test_init_makes_a_token_for_nobody_else_once(config):
    path = config / "fusionloader" / "token"
    status, out, errors = ended("--init")
    assert (status, errors) == (0, "") and out.startswith(f"a new token is in {path}\ncopy it to")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    first = read_token(path)
    assert len(first) == 64
    assert ended("--init")[1].startswith(f"there is a token in {path}\n")
    assert read_token(path) == first
    other = config / "other"
    assert ended("--init", other)[0] == 0
    assert read_token(other) != first


def test_init_says_what_is_wrong_with_a_token(config):
    config.mkdir()
    (config / "open").write_text("a token that others may read")
    (config / "open").chmod(0o644)
    status, out, errors = ended("--init", config / "open")
    assert (status, out) == (1, "")
    assert errors.startswith("fusionloader worker: others may read the token file")


# ---- what does not work ------------------------------------------------------------------------


def check_error(arguments, why):
    status, out, errors = ended(*arguments)
    assert (status, out) == (1, "")
    assert re.fullmatch(f"fusionloader worker: {why}\n", errors), errors


def test_a_worker_needs_a_token(config):
    path = config / "fusionloader" / "token"
    listen = ("--listen", f"{HOST}:0")
    check_error(listen, f"there is no token in {path}: `python -m fusionloader worker --init`.*")
    check_error((*listen, "--token-file", "/nowhere"), "the token file cannot be read: .*/nowhere'")


def test_a_worker_says_why_it_does_not_start(token):
    check_error((), "--listen HOST:PORT says where loaders find the worker")
    check_error(("--listen", "here"), "an address is written as \"host:port\", not 'here'")
    check_error(("--listen", f"{HOST}:0", "--cache", "much"), "an amount of memory is written.*")
    with serving() as (_, address, _):
        check_error(("--listen", address), f"cannot listen at {address}: Address already in use")

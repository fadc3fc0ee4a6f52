"""What the doctor says of remote workers: real ones, which are asked for something."""

import contextlib
import re
import socket
import subprocess
import sys

import pytest

import fusionloader
from fusionloader.cli.doctor import remote_workers
from fusionloader.sharing.remote.worker.service import WorkerService
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity
from fusionloader.system.transport.tokens import make_token_file

HOST = "127.0.0.2"


@pytest.fixture
def token_file(tmp_path):
    path = tmp_path / "token"
    assert make_token_file(path)
    return str(path)


@pytest.fixture
def service(token_file):
    token = remote_workers.read_token(token_file)
    found = WorkerService(Address(HOST, 0), Identity.of(token), 2)
    with contextlib.closing(found):
        yield found


def examined(token_file, *targets):
    return list(remote_workers.checks([str(target) for target in targets], token_file))


def test_images_are_sent_to_find_out(service, token_file):
    (check,) = examined(token_file, service.address)
    assert (check.name, check.state) == (f"worker {service.address}", "ok")
    assert "images/s by one of 2 cores" in check.value
    assert f"fusionloader {fusionloader.__version__}, not encrypted: loopback" in check.value
    assert service.counts.samples == remote_workers._REQUESTS * remote_workers._IMAGES


def test_the_users_token_is_used_unless_told_otherwise(service, token_file, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (check,) = examined(None, service.address)
    assert check.name == "token" and check.state == "fail" and "worker --init" in check.remedy
    folder = tmp_path / "fusionloader"
    folder.mkdir()
    (tmp_path / "token").rename(folder / "token")
    (check,) = examined(None, service.address)
    assert check.state == "ok"


def test_another_token_is_said(service, tmp_path):
    other = tmp_path / "other"
    make_token_file(other)
    (check,) = examined(other, service.address)
    assert check.state == "fail" and "token" in check.value
    assert check.remedy == "give both machines the same token file"


def test_nobody_there_is_said(token_file):
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        (check,) = examined(token_file, Address(*unused.getsockname()))
    assert check.state == "fail" and "cannot be reached" in check.value
    assert "fusionloader worker --listen" in check.remedy


def test_another_version_is_said(token_file, monkeypatch):
    arguments = ["worker", "--listen", f"{HOST}:0", "--token-file", token_file, "--cores", "1"]
    command = [sys.executable, "-m", "fusionloader", *arguments]
    there = fusionloader.__version__
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        try:
            address = re.search(r"at (\S+),", worker.stdout.readline())[1]
            monkeypatch.setattr(fusionloader, "__version__", "0.0.7")
            (check,) = examined(token_file, address)
        finally:
            worker.terminate()
    assert check.state == "fail" and check.remedy == "pip install fusionloader==0.0.7"
    assert check.value.startswith(f"has fusionloader {there}, and the loader has 0.0.7")


def test_what_is_no_address_is_said(token_file):
    (check,) = examined(token_file, "cpu1")
    assert check.state == "fail" and "host:port" in check.value


def test_each_worker_has_a_line(service, token_file):
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        checks = examined(token_file, Address(*unused.getsockname()), service.address)
    assert [check.state for check in checks] == ["fail", "ok"]


def test_no_ray_cluster_is_said(monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.2:1")
    (check,) = remote_workers.checks([], None)
    assert check.state == "fail" and "no Ray cluster answers at 127.0.0.2:1" in check.value
    assert "ray start --head" in check.remedy

"""python -m fusionloader cache: one cache for jobs that come and go, shown and dropped."""

import contextlib
import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.cache_jobs import (
    attach,
    detach,
    holder_pid,
    processes_with,
    read,
    request,
    users,
    write,
)
from support.waiting import PATIENCE, wait_until

from fusionloader.__main__ import main
from fusionloader.cache import client

ROOT = Path(__file__).parents[2]
FINGERPRINT = request().fingerprint


@pytest.fixture
def serve(runtime_folder):
    """Begins `cache serve` with these arguments; returns the process, whose log goes to stderr."""
    with contextlib.ExitStack() as stack:

        def begin(*arguments):
            command = [sys.executable, "-m", "fusionloader", "cache", "serve", *arguments]
            process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
            stack.callback(process.stderr.close)
            stack.callback(process.wait, PATIENCE)
            stack.callback(process.kill)
            wait_until(lambda: holder_pid() == process.pid or process.poll() is not None)
            return process

        yield begin


def listed(capsys):
    assert main(["cache", "ls", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_what_is_served_outlives_the_jobs(serve, cache_job, capsys):
    served = serve("--size", "1GB")
    first = cache_job()
    memory = first.do(attach, request())
    first.do(write, "encoded", 1 << 20, b"filled once")
    first.kill()
    wait_until(lambda: users() == [])
    second = cache_job()
    assert second.do(attach, request(token="another job", memory=1)) == memory
    assert second.do(read, "encoded", 1 << 20, 11) == b"filled once"
    (ledger,) = listed(capsys)["ledgers"]
    assert ledger["memory"]["limit"] == 10**9 // 4096 * 4096 and ledger["served"]
    (dataset,) = ledger["datasets"]
    assert dataset["users"] == [second.pid] and dataset["fingerprint"] == FINGERPRINT
    served.send_signal(signal.SIGTERM)
    _, log = served.communicate(timeout=PATIENCE)
    assert served.returncode == 0
    title = f"/data/imagenet/train ({FINGERPRINT[:12]}, 100 files)"
    for line in (
        f"pid {served.pid} serves 953.7 MiB of memory",
        f"pid {first.pid} begins {title}",
        f"pid {first.pid} leaves {title}",
        f"pid {second.pid} joins {title}",
    ):
        assert line in log
    assert processes_with(memory["encoded"]) == {second.pid}
    assert second.do(read, "encoded", 1 << 20, 11) == b"filled once"


def test_a_job_learns_whose_budget_it_has(serve, cache_job, caplog):
    caplog.set_level(logging.INFO, "fusionloader.cache")
    serve("--size", "1GB")
    with contextlib.closing(client.attach(request())) as attached:
        assert attached.served and (attached.memory, attached.disk) == (999_997_440, 0)
    assert "of 999997440 bytes of memory and 0 of disk; this job's own size is not" in caplog.text


def test_a_served_disk_is_that_of_all_jobs(serve, cache_job, tmp_path, capsys):
    serve("--size", "1MB", "--path", str(tmp_path), "--memory", "2MiB")
    attached = [cache_job().do(attach, request(path=path)) for path in (None, "/another/disk")]
    assert attached[0] == attached[1]
    (ledger,) = listed(capsys)["ledgers"]
    assert (ledger["path"], ledger["disk"]["limit"]) == (str(tmp_path), 10**6 // 4096 * 4096)
    assert ledger["memory"]["limit"] == 2 << 20


def test_a_table_says_what_is_held_and_who_uses_it(cache_job, capsys):
    first = cache_job()
    first.do(attach, request())
    assert main(["cache", "ls"]) == 0
    budget, _, _, index, encoded, *_ = capsys.readouterr().out.splitlines()
    assert f"of 16.0 MiB memory; held for jobs by pid {holder_pid()}" in budget
    name, fingerprint, files, tier, _, size, unit, user = index.split()
    assert (name, fingerprint) == ("/data/imagenet/train", FINGERPRINT[:12])
    assert (files, tier, unit, user) == ("100", "index", "MiB", str(first.pid))
    assert float(size) >= 0 and encoded.split()[0] == "encoded"


def test_without_a_holder_nothing_is_held(runtime_folder, capsys):
    assert main(["cache", "ls"]) == 0
    assert capsys.readouterr().out == "no cache is held\n"
    assert listed_nothing(capsys)
    assert main(["cache", "drop", "all"]) == 1
    assert "no cache is held" in capsys.readouterr().err


def listed_nothing(capsys):
    return listed(capsys) == {"pid": None, "ledgers": []}


def test_a_dataset_that_nobody_uses_is_dropped_and_its_budget_free_again(serve, cache_job, capsys):
    serve("--size", "1GB")
    first = cache_job()
    memory = first.do(attach, request())
    assert main(["cache", "drop", FINGERPRINT[:6]]) == 1
    assert f"is used by pid {first.pid}: end these processes first" in capsys.readouterr().err
    first.do(detach)
    wait_until(lambda: users() == [])
    before = listed(capsys)["ledgers"][0]["memory"]["used"]
    assert main(["cache", "drop", FINGERPRINT[:6]]) == 0
    assert "dropped /data/imagenet/train" in capsys.readouterr().out
    (ledger,) = listed(capsys)["ledgers"]
    assert ledger["datasets"] == [] and ledger["memory"]["used"] < before
    assert processes_with(memory["encoded"]) == set()


def test_a_beginning_that_no_dataset_or_several_have_is_refused(cache_job, capsys):
    for fingerprint in ("abc1", "abc2"):
        cache_job().do(attach, request(fingerprint=fingerprint))
    assert main(["cache", "drop", "5"]) == 1
    assert "no dataset is held whose fingerprint begins with 5" in capsys.readouterr().err
    assert main(["cache", "drop", "abc"]) == 1
    assert "abc is the beginning of several: " in capsys.readouterr().err


def test_while_jobs_hold_caches_nothing_is_served_and_the_error_says_what_to_do(cache_job, serve):
    first = cache_job()
    first.do(attach, request())
    refused = serve("--size", "1GB")
    _, log = refused.communicate(timeout=PATIENCE)
    assert refused.returncode == 1
    assert f"the caches of jobs that run (pid {first.pid}): wait until they have ended, or" in log
    first.kill()
    served = serve("--size", "1GB")  # waits for the last holder, which ends soon
    assert holder_pid() == served.pid


def test_a_second_server_is_refused_and_the_first_named(serve, cache_job):
    first = serve("--size", "1GB")
    second = serve("--size", "1GB")
    _, log = second.communicate(timeout=PATIENCE)
    assert second.returncode == 1
    assert f"pid {first.pid} serves a cache already: end it first (kill {first.pid})" in log


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--size", "0"], "an amount of memory is written as"),
        (["--size", "10000TiB"], "and this machine has"),
        (["--size", "1GB", "--memory", "1GB"], "--memory goes with --path"),
        (["--size", "1GB", "--path", "/nowhere"], "--path /nowhere is no folder"),
        (["--size", "10000TiB", "--path", "."], "--size is .*, and the disk of .* has"),
    ],
)
def test_a_budget_that_cannot_be_is_refused(runtime_folder, capsys, arguments, why):
    assert main(["cache", "serve", *arguments]) == 1
    assert re.search(why, capsys.readouterr().err)
    assert holder_pid() is None


def test_a_runtime_folder_that_others_may_enter_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "fusionloader").mkdir()
    os.chmod(tmp_path / "fusionloader", 0o755)
    assert main(["cache", "ls"]) == 1
    assert main(["cache", "serve", "--size", "1GB"]) == 1
    assert capsys.readouterr().err.count("is open to others (mode 0755)") == 2

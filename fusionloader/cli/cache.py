"""The cache command: serves one cache to all jobs of the machine, shows and drops what is held."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from fusionloader.cache.client import HolderUnavailable, ask_holder
from fusionloader.cache.holder import Holder
from fusionloader.cache.holder_socket import HolderSocket
from fusionloader.cache.runtime_folder import runtime_folder
from fusionloader.cache.stores import CacheStores, ServedBudget
from fusionloader.cli.measure.report import table
from fusionloader.system.amounts import mib, parse_bytes
from fusionloader.system.fd_messages import Fields

_SHORT = 12  # characters of a fingerprint that are shown; `drop` takes any beginning
_LAST_SECONDS = 5.0  # until a holder without users has ended
_HEADER = ("dataset", "fingerprint", "files", "tier", "images", "size", "used by pid")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    actions = parser.add_subparsers(dest="action", required=True)
    serve = actions.add_parser("serve", help="hold one cache for all jobs, until Ctrl-C or SIGTERM")
    serve.add_argument("--size", required=True, help="the budget, as 200GiB: memory, or of --path")
    serve.add_argument("--path", type=Path, help="a folder on a local disk, for --size bytes of it")
    serve.add_argument("--memory", help="with --path: the budget of shared memory before the disk")
    listing = actions.add_parser("ls", help="show what is held, and who uses it")
    listing.add_argument("--json", action="store_true", help="print it for programs")
    drop = actions.add_parser("drop", help="free unused datasets")
    drop.add_argument("fingerprint", help="the beginning of a dataset's fingerprint, or: all")


def run(options: argparse.Namespace) -> int:
    """Does one of the three; returns 1 where it is refused or not possible."""
    try:
        return {"serve": _serve, "ls": _list, "drop": _drop}[options.action](options)
    except (HolderUnavailable, OSError, ValueError) as error:
        print(f"fusionloader cache: {error}", file=sys.stderr)
        return 1


# ---- serve -------------------------------------------------------------------------------------


def _serve(options: argparse.Namespace) -> int:
    budget = _budget(options)
    stores = CacheStores(budget)
    claimed = _claim()
    _log_to_standard_error()
    log = logging.getLogger("fusionloader.cache")
    disk = f" and {mib(budget.disk)} of {budget.path}" if budget.path else ""
    log.info("pid %d serves %s of memory%s", os.getpid(), mib(budget.memory), disk)
    Holder(claimed, stores, lives_on=True).serve()
    log.info("no longer served; jobs that run keep what they have")
    return 0


def _budget(options: argparse.Namespace) -> ServedBudget:
    size = parse_bytes(options.size)
    if options.path is None:
        if options.memory is not None:
            raise ValueError("--memory goes with --path: without a disk, --size is of memory")
        return ServedBudget(size)
    path = options.path.resolve()
    if not path.is_dir() or not os.access(path, os.W_OK | os.X_OK):
        raise ValueError(f"--path {path} is no folder that can be written to")
    disk = os.statvfs(path)
    capacity = disk.f_blocks * disk.f_frsize
    if size > capacity:
        raise ValueError(f"--size is {mib(size)}, and the disk of {path} has {mib(capacity)}")
    return ServedBudget(parse_bytes(options.memory) if options.memory else 0, size, str(path))


def _claim() -> HolderSocket:
    """Returns the holder's socket.

    Raises:
        HolderUnavailable: another holder has it, and something to hold.
    """
    deadline = time.monotonic() + _LAST_SECONDS
    while (claimed := HolderSocket.claim(runtime_folder())) is None:
        held = ask_holder({"do": "list"})
        if held is not None and (held["ledgers"] or time.monotonic() > deadline):
            raise HolderUnavailable(_why_not(held))
        time.sleep(0.05)
    return claimed


def _why_not(held: Fields) -> str:
    pid = held["pid"]
    if any(ledger["served"] for ledger in held["ledgers"]):
        return f"pid {pid} serves a cache already: end it first (kill {pid})"
    datasets = [dataset for ledger in held["ledgers"] for dataset in ledger["datasets"]]
    users = sorted({user for dataset in datasets for user in dataset["users"]})
    return (
        f"pid {pid} holds the caches of jobs that run (pid {', '.join(map(str, users))}): wait "
        f"until they have ended, or kill {pid}. They would keep their memory, which counts in no "
        "budget of what is served; later jobs would find what is served"
    )


def _log_to_standard_error() -> None:
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%Y-%m-%d %H:%M:%S")
    logging.getLogger("fusionloader.cache").setLevel(logging.INFO)


# ---- ls and drop -------------------------------------------------------------------------------


def _list(options: argparse.Namespace) -> int:
    held = ask_holder({"do": "list"}) or {"pid": None, "ledgers": []}
    if options.json:
        print(json.dumps(held, indent=2))
        return 0
    if not held["ledgers"]:
        print("no cache is held" if held["pid"] is None else f"pid {held['pid']} holds no cache")
        return 0
    for ledger in held["ledgers"]:
        print(_budget_line(ledger, held["pid"]))
        rows = [row for dataset in ledger["datasets"] for row in _rows(dataset)]
        print(f"{table(_HEADER, rows)}\n" if rows else "no dataset yet\n")
    return 0


def _budget_line(ledger: Fields, pid: int) -> str:
    memory, disk = ledger["memory"], ledger["disk"]
    text = f"{mib(memory['used'])} of {mib(memory['limit'])} memory"
    if ledger["path"] is not None:
        text += f", {mib(disk['used'])} of {mib(disk['limit'])} in {ledger['path']}"
    kind = "served by" if ledger["served"] else "held for jobs by"
    return f"{text}; {kind} pid {pid}"


def _rows(dataset: Fields) -> Iterator[tuple[str, ...]]:
    """Yields a row for each tier; only the first has the dataset's name."""
    first = (dataset["name"], dataset["fingerprint"][:_SHORT], f"{dataset['files']:,}")
    users = " ".join(map(str, dataset["users"])) or "nobody"
    for tier, usage in dataset["tiers"].items():
        yield (*first, tier, f"{usage['images']:,}", mib(usage["bytes"]), users)
        first, users = ("", "", ""), ""


def _drop(options: argparse.Namespace) -> int:
    answer = ask_holder({"do": "drop", "fingerprint": options.fingerprint})
    if answer is None:
        raise HolderUnavailable("no cache is held")
    for dataset in answer["dropped"]:
        print(f"dropped {dataset}")
    if not answer["dropped"]:
        print("nothing to drop")
    return 0

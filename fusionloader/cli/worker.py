"""The worker command: prepares samples for training on other machines, until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from fusionloader.cli.counts import at_least
from fusionloader.sharing.remote.worker.service import WorkerService
from fusionloader.system.amounts import parse_bytes
from fusionloader.system.limits.open_files import allow_many_files
from fusionloader.system.limits.processors import cores_allowed
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity, read_token
from fusionloader.system.transport.tokens import default_token_file, make_token_file

_SIGNALS = {signal.SIGINT, signal.SIGTERM}
_DRAIN_SECONDS = 1.5
_INIT = "python -m fusionloader worker --init"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    token = default_token_file()
    parser.add_argument("--listen", metavar="HOST:PORT", help="where; port 0 is any free one")
    parser.add_argument("--token-file", type=Path, default=token, help=f"by default {token}")
    parser.add_argument(
        "--cores", type=at_least(1), help="requests worked on at once; by default all CPUs"
    )
    parser.add_argument(
        "--cache", metavar="SIZE", help="memory for files that were read, as 50GiB; none by default"
    )
    parser.add_argument(
        "--init",
        nargs="?",
        type=Path,
        const=token,
        metavar="FILE",
        help="make a token file unless it is there, and say where it is",
    )


def run(options: argparse.Namespace) -> int:
    """Serves, or makes a token; returns 1 where that is not possible."""
    try:
        return _serve(options) if options.init is None else _init(options.init)
    except (ImportError, OSError, ValueError) as error:
        told = error.strerror if isinstance(error, OSError) and not error.filename else None
        print(f"fusionloader worker: {told or error}", file=sys.stderr)
        return 1


def _init(path: Path) -> int:
    path = path.expanduser().absolute()
    made = make_token_file(path)
    read_token(path)
    print(f"{'a new token is' if made else 'there is a token'} in {path}")
    print("copy it to the other machines, where only its owner may read it (chmod 600);")
    print("who has it may use the workers that are started with it")
    return 0


def _serve(options: argparse.Namespace) -> int:
    if options.listen is None:
        raise ValueError("--listen HOST:PORT says where loaders find the worker")
    identity = Identity.of(read_token(_token_file(options.token_file)))
    cores = cores_allowed() if options.cores is None else options.cores
    cache_bytes = 0 if options.cache is None else parse_bytes(options.cache)
    allow_many_files()
    # Threads inherit the mask, so that only the wait below gets these signals.
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        service = WorkerService(Address.parse(options.listen), identity, cores, cache_bytes)
        print(f"listening at {service.address}, {cores} cores", flush=True)
        signal.sigwait(_SIGNALS)
        if service.drain(_DRAIN_SECONDS):
            service.close()
        counts = service.counts
        print(f"prepared {counts.samples} samples; declined {counts.declined} requests", flush=True)
        return 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _token_file(path: Path) -> Path:
    if path == default_token_file() and not path.exists():
        raise ValueError(
            f"there is no token in {path}: `{_INIT}` makes one, or name a --token-file"
        )
    return path

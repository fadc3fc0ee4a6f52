"""What remote workers cost the machine that trains, and how soon they help.

A worker's command runs beside the loader, on this machine's loopback device or on its address. CPU
time per tiny-batch of 4 x 3 x 224 x 224: of the proxy, which speaks to remote workers, and of a
local worker, which prepares tiny-batches of the same epochs. Epochs of all ways are interleaved.
"""

from __future__ import annotations

import argparse
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from torchvision import transforms
from torchvision.datasets import ImageFolder

from benchmarks.cache_servers import cpu_seconds
from benchmarks.study import parser_of, publish
from fusionloader import FusionLoader, Remote
from fusionloader.cli.bench import setting_of
from fusionloader.cli.measure.workloads import MEAN, SIDE, STD
from fusionloader.cli.progress import Progress
from fusionloader.options.remote_settings import DataPlace, Offload
from fusionloader.system.transport.identity import draw_token

LOOPBACK = "127.0.0.3"
TINY_BATCH = 4
_EPOCHS = 3  # of a measurement
_COUNTED_SECONDS = 0.3  # within which the proxy has counted its CPU time
_FIRST_SECONDS = 60.0
_CROP = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip()]
ELEMENTS = {
    "uint8": transforms.Compose([*_CROP, transforms.PILToTensor()]),
    "float32": transforms.Compose([*_CROP, transforms.ToTensor(), transforms.Normalize(MEAN, STD)]),
}


class Way(NamedTuple):
    """How samples travel."""

    elements: str
    data: DataPlace
    encrypted: bool

    def __str__(self) -> str:
        data = "paths" if self.data == "shared" else "shipped"
        return f"{self.elements}, {data}{', encrypted' if self.encrypted else ''}"


WAYS = [
    Way(elements, data, encrypted)
    for encrypted in (False, True)
    for elements in ELEMENTS
    for data in ("shared", "ship")
]


def own_address() -> str:
    """Returns an address of this machine that is not a loopback one, or else one that is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))  # sends nothing: it chooses where to send from
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])


@contextmanager
def worker_process(host: str, token_file: Path, cores: int = 1) -> Iterator[str]:
    """Starts a worker on this machine; yields its address."""
    command = [sys.executable, "-m", "fusionloader", "worker", "--listen", f"{host}:0"]
    command += ["--token-file", str(token_file), "--cores", str(cores)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.match(r"listening at (\S+), ", line)
            if found is None:
                raise SystemExit("the worker has not started")
            yield found[1]
        finally:
            process.kill()


@contextmanager
def token() -> Iterator[Path]:
    """Makes a token file for the time of a study."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "token"
        file.touch(0o600)
        file.write_text(draw_token().hex())
        yield file


def loader_of(
    dataset: ImageFolder, options: argparse.Namespace, remote: Remote | None, workers: int = 1
) -> FusionLoader[Any]:
    """Returns a loader of a study; each of its epochs goes through all samples."""
    return FusionLoader(
        dataset,
        options.batch_size,
        shuffle=True,
        seed=1,
        num_workers=workers,
        tiny_batch_size=TINY_BATCH,
        drop_last=True,
        persistent_workers=True,
        remote=remote,
    )


def remote_of(address: str, token_file: Path, data: DataPlace, offload: Offload) -> Remote:
    """Returns settings for one worker."""
    return Remote(servers=[address], token_file=str(token_file), data=data, offload=offload)


# ---- CPU time ----------------------------------------------------------------------------------


class Counted(NamedTuple):
    """CPU seconds of the proxy and of the local worker, and tiny-batches that they have made."""

    proxy: float
    worker: float
    remote: int
    local: float


def counted(loader: FusionLoader[Any]) -> Counted:
    """Returns what was counted of a loader until now."""
    time.sleep(_COUNTED_SECONDS)
    stats = loader.stats()
    assert stats.remote is not None
    local = next(worker for worker in stats.workers if worker.kind != "remote")
    tiny_batches = sum(worker.tiny_batches for worker in stats.remote.workers)
    made_here = (stats.samples - stats.remote.samples) / TINY_BATCH
    return Counted(stats.remote.cpu_seconds, cpu_seconds(local.pid), tiny_batches, made_here)


def epoch_costs(loader: FusionLoader[Any]) -> list[float]:
    """Returns CPU microseconds per tiny-batch: of the proxy, and of the local worker."""
    before = counted(loader)
    for _ in range(_EPOCHS):
        for _batch in loader:
            pass
    after = counted(loader)
    remote, local = after.remote - before.remote, after.local - before.local
    return [
        1e6 * (after.proxy - before.proxy) / remote,
        1e6 * (after.worker - before.worker) / local,
        remote / (remote + local),
    ]


# ---- the first samples ---------------------------------------------------------------------------


def first_seconds(loader: FusionLoader[Any]) -> list[float]:
    """Returns seconds from ``iter()``: to the first batch, and to one with remote samples made."""
    start = time.perf_counter()
    first: list[float] = []
    while time.perf_counter() - start < _FIRST_SECONDS:
        for _batch in loader:
            first = first or [time.perf_counter() - start]
            stats = loader.stats().remote
            if stats is not None and stats.samples and len(first) == 1:
                first.append(time.perf_counter() - start)
        if len(first) == 2:
            return first
    raise SystemExit("the remote worker makes nothing")


def main() -> None:
    parser = parser_of(__doc__, rounds=7)
    parser.set_defaults(workers=1, images=1000)
    options = parser.parse_args()
    setting, corpus = setting_of(options, "default")
    folder = str(setting.folder().absolute())
    own = own_address()
    costs: dict[Way, list[list[float]]] = {way: [] for way in WAYS}
    starts: list[list[float]] = []
    with ExitStack() as stack, Progress("remote workers", options.rounds) as progress:
        token_file = stack.enter_context(token())
        hosts = {False: LOOPBACK, True: own}
        addresses = {
            encrypted: stack.enter_context(worker_process(host, token_file))
            for encrypted, host in hosts.items()
        }
        ways = [way for way in WAYS if own != LOOPBACK or not way.encrypted]
        for _ in range(options.rounds):
            for way in ways:
                remote = remote_of(addresses[way.encrypted], token_file, way.data, "all")
                dataset = ImageFolder(folder, ELEMENTS[way.elements])
                with loader_of(dataset, options, remote) as loader:
                    started = first_seconds(loader)
                    costs[way].append(epoch_costs(loader))
                    if way == WAYS[0]:
                        starts.append(started)
            progress.advance()
    rows = []
    for way in ways:
        proxy, worker, share = (median(each) for each in zip(*costs[way], strict=True))
        least = min(each[0] for each in costs[way])
        figures = [f"{proxy:.0f}", f"{least:.0f}", f"{worker:.0f}", f"{proxy / worker:.1%}"]
        rows.append((str(way), *figures, f"{share:.0%}"))
    header = (
        "samples",
        "proxy CPU us/tiny-batch",
        "least",
        "local worker CPU us/tiny-batch",
        "ratio",
        "remote share",
    )
    every = [{"way": str(way), "proxy_worker_us_share": costs[way]} for way in ways]
    first = [median(each) for each in zip(*starts, strict=True)]
    print(f"from iter(): first batch {first[0]:.2f} s, first with remote samples {first[1]:.2f} s")
    if own == LOOPBACK:
        print("not measured: encrypted connections, for want of an address beyond loopback")
    publish(options, header, rows, measured=every, first_seconds=starts, corpus=corpus)


if __name__ == "__main__":
    main()

"""Training processes whose workers are blocked, in every way and in every kind of worker.

``python orphans.py KIND BLOCKED FOLDER`` prints the pids of its workers once they are blocked.
"""

import contextlib
import functools
import os
import re
import select
import sys
import threading
import time
from pathlib import Path

import psutil
from support.images import eval_transform
from support.tar_shards import image_shards
from torch.utils.data import Dataset, IterableDataset

from fusionloader import FusionLoader, GpuWorker, Remote, WorkerPool
from fusionloader.addons.inference import Preprocessor
from fusionloader.data.sources import TarStream
from fusionloader.sharing.remote.worker.service import WorkerService
from fusionloader.system.processes import BareProcess
from fusionloader.system.transport.address import Address
from fusionloader.system.transport.identity import Identity, read_token

WORKERS = 2
BESIDE = ("gpu", "reader")  # kinds with a process beside the workers
kept = []  # what has workers, and what these need


def hold_the_gil():
    """Runs for ever, in C, and lets no other thread run meanwhile."""
    re.match(r"(a+)+$", "a" * 64 + "b")


def take_a_lock_twice():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


BLOCKED = {
    "sleep": functools.partial(time.sleep, 3600),
    "GIL": hold_the_gil,
    "futex": take_a_lock_twice,
}


def block(how, folder):
    """Says that this process is about to be blocked, and is."""
    (Path(folder) / f"blocked-{os.getpid()}").touch()
    if how == "fifo":
        (Path(folder) / "fifo").read_bytes()
    BLOCKED[how]()


class Blocked(Dataset):
    def __init__(self, how, folder):
        self.how, self.folder = how, folder

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        if self.how == "pipe":
            raise ValueError("bad" * 100_000)  # more than a pipe takes
        block(self.how, self.folder)


class BlockedStream(IterableDataset):
    def __init__(self, how, folder):
        self.how, self.folder = how, folder

    def __iter__(self):
        block(self.how, self.folder)
        yield


def blocked_in(how, folder, _):
    """A collate_fn, or a worker_init_fn."""
    block(how, folder)


def main(config):
    """A bare process."""
    block(*config)


def images(folder):
    """An image folder of which no file is an image."""
    from torchvision.datasets import ImageFolder

    place = Path(folder) / "images" / "class"
    place.mkdir(parents=True)
    for number in range(2000):
        (place / f"{number}.jpg").write_bytes(b"no image")
    return ImageFolder(str(place.parent), eval_transform())


def remote_worker(folder):
    """Starts one in this process, for its proxy, and returns its address."""
    token = Path(folder) / "token"
    token.write_text("a token that loader and workers know")
    token.chmod(0o600)
    service = WorkerService(Address("127.0.0.3", 0), Identity.of(read_token(token)), 2)
    kept.append(service)
    return str(service.address)


def begin(kind, how, folder):
    """Begins what has workers that become blocked, and returns it."""
    kind, _, method = kind.partition(" ")
    if kind == "bare":
        return [BareProcess("orphans", (how, folder), ()) for _ in range(WORKERS)]
    if kind == "preprocessor":
        return Preprocessor(eval_transform(), num_workers=WORKERS)
    blocked = functools.partial(blocked_in, how, folder)
    options = {"num_workers": WORKERS, "prefetch_factor": 64}
    if method:
        options["multiprocessing_context"] = method
    if kind in ("rows", "plan"):
        options["on_error"] = "skip"
    if kind == "rows":
        dataset = Blocked(how, folder)
    elif kind == "reader":  # which reads ahead
        ((name, shard),) = image_shards((16,)).items()
        (Path(folder) / name).write_bytes(shard)
        dataset = TarStream(f"file://{folder}/{name}", transform=eval_transform())
    elif kind == "stream":
        dataset = BlockedStream(how, folder)
    elif kind == "collate":
        dataset = Blocked(how, folder) if how == "pipe" else range(4000)
        options["collate_fn"] = list if how == "pipe" else blocked
    else:
        dataset = images(folder)
    if kind == "init":
        options["worker_init_fn"] = blocked
    if kind == "pool":
        dataset = Blocked(how, folder)
        options["pool"] = WorkerPool(
            options.pop("num_workers"),
            multiprocessing_context=options.pop("multiprocessing_context"),
        )
    if kind == "gpu":
        options["gpu_worker"] = GpuWorker("cpu", sharing="spatial", decoder="torchvision")
    if kind == "remote":
        options["remote"] = Remote(servers=[remote_worker(folder)], token_file=f"{folder}/token")
    if kind == "shared":
        options |= {"share": "orphans", "seed": 1}
    return iter(FusionLoader(dataset, 8, **options))


def full_pipes():
    """Returns how many of the pipes that this process has open take no more."""
    full = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            name = os.readlink(entry)
            if name.startswith("pipe:"):
                writing = os.open(entry, os.O_WRONLY | os.O_NONBLOCK)
                if not select.select([], [writing], [], 0)[1]:
                    full.add(name)
                os.close(writing)
    return len(full)


def are_blocked(kind, how, folder):
    """Whether all workers are blocked as they are to be."""
    if how == "pipe":
        return full_pipes() == WORKERS
    if how == "idle":  # their second thread is the one that watches this process
        children = psutil.Process().children()
        expected = WORKERS + (kind in BESIDE)
        return len(children) >= expected and all(each.num_threads() > 1 for each in children)
    return len(list(Path(folder).glob("blocked-*"))) == WORKERS


if __name__ == "__main__":
    kind, how, folder = sys.argv[1:]
    kept.append(begin(kind, how, folder))
    while not are_blocked(kind, how, folder):
        time.sleep(0.01)
    print(*[child.pid for child in psutil.Process().children(recursive=True)], flush=True)
    time.sleep(3600)

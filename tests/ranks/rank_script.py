"""One rank of a job, as a script: goes through its part of an image folder and prints each batch.

Arguments: the image folder, then ``name=value`` pairs, see ``OPTIONS``. A line that begins with
``batch`` has the digest of a batch, ``borrowed`` the samples that borrowed workers have made until
then, ``stats`` the loader's counters.

After its epochs it goes through further ones, without digests, until its input ends: an event that
a test waits for occurs however long it takes.
"""

import hashlib
import itertools
import json
import logging
import os
import pickle
import random
import select
import sys
import time
from pathlib import Path

import numpy
import torch
from support.images import train_transform
from support.user_datasets import weighted
from support.waiting import PATIENCE
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, Remote, WorkerPool
from fusionloader.engine.manager import publications
from fusionloader.workers import worker_set

OPTIONS = {
    "global_manager": "auto",
    "large_rank": -1,  # its samples are the 20 largest of 40, those of others the smallest
    "epochs": 2,
    "repeats": 3,  # how often an epoch goes through the rank's samples
    "step_seconds": 0.0,
    "workers": 1,
    "pool": 0,  # whether the workers are a pool's, which serve a second loader as well
    "size": 224,
    "batch_size": 8,
    "tiny_batch_size": 4,
    "method": "fork",
    "log": 0,
    "remote": "",  # address of a remote worker, whose token is in "token"
    "token": "",
    "ray": "",  # address of a Ray cluster, on which each rank needs "ray_workers" workers
    "ray_workers": 1,
    "trace": "",  # the beginning of a path that the rank's trace is written to
    "pickled": "",  # a file with the dataset, else an ImageFolder
    "collate": 0,  # whether a collate_fn makes whole mini-batches
    "init": "",  # worker_init_fn: "notes" as in PyTorch's notes on reproducibility, or "own"
    "any_may_die": 0,  # three workers that die in a row, or on the same samples, are no error
}


def workers(options):
    if options["pool"]:
        return {"pool": WorkerPool(options["workers"], options["method"])}
    return {"num_workers": options["workers"], "multiprocessing_context": options["method"]}


def other(loader):
    """An iterator of a second loader of the same pool."""
    dataset = Subset(loader.dataset, loader.sampler[:8])
    return iter(FusionLoader(dataset, 4, pool=loader.pool, on_error="skip"))


def seed_as_in_notes(worker):
    random.seed(torch.initial_seed() % 2**32)
    numpy.random.seed(torch.initial_seed() % 2**32)


def seed(worker):
    random.seed(worker)


INITS = {"": None, "notes": seed_as_in_notes, "own": seed}


def remote(options):
    if options["ray"]:
        return Remote(address=options["ray"], workers=options["ray_workers"], offload="all")
    if not options["remote"]:
        return None
    return Remote(servers=[options["remote"]], token_file=options["token"], offload="all")


def persists(options):
    """Whether workers stay: remote proxies connect anew, and spawned workers take seconds to start.

    Without that the epochs of two ranks might not meet on a busy machine.
    """
    is_spawned = options["method"] == "spawn" and not options["pool"]
    return is_spawned or bool(options["remote"] or options["ray"])


def end_is_requested():
    return bool(select.select([sys.stdin], [], [], 0)[0])


def main() -> None:
    root, *pairs = sys.argv[1:]
    options = dict(OPTIONS)
    for pair in pairs:
        name, _, value = pair.partition("=")
        options[name] = type(OPTIONS[name])(value)
    if options["log"]:
        logging.basicConfig(stream=sys.stdout, format="log %(message)s", level=logging.INFO)
    if options["any_may_die"]:
        worker_set._FRUITLESS_DEATHS = publications.MOST_DEATHS = 1 << 30
    rank = int(os.environ["LOCAL_RANK"])
    dataset = ImageFolder(root, train_transform(options["size"]))
    by_size = sorted(range(len(dataset)), key=lambda i: os.path.getsize(dataset.samples[i][0]))
    if options["pickled"]:
        dataset = pickle.loads(Path(options["pickled"]).read_bytes())
    half = len(by_size) // 2
    mine = by_size[half:] if rank == options["large_rank"] else by_size[:half]
    loader = FusionLoader(
        dataset,
        options["batch_size"],
        sampler=mine * options["repeats"],
        **workers(options),
        seed=7,
        on_error="skip",
        collate_fn=weighted if options["collate"] else None,
        worker_init_fn=INITS[options["init"]],
        timeout=PATIENCE,
        tiny_batch_size=options["tiny_batch_size"],
        remote=remote(options),
        persistent_workers=persists(options),
        global_manager=options["global_manager"],
    )
    if options["trace"]:
        loader.trace(f"{options['trace']}{rank}.json")
    for epoch in itertools.count():
        in_part = epoch < options["epochs"]
        if not in_part and end_is_requested():
            break
        iterator = iter(loader)
        between = other(loader) if options["pool"] else iter(())
        for images, targets in iterator:
            if in_part:
                digest = hashlib.sha256(images.numpy().tobytes() + targets.numpy().tobytes())
                print("batch", digest.hexdigest(), flush=True)
            stats = loader.stats()
            print("borrowed", stats.borrowed_samples, flush=True)
            if stats.remote is not None:
                print("remote", stats.remote.samples, flush=True)
                print("fleet", stats.remote.ranks, stats.remote.fleet_workers, flush=True)
            time.sleep(options["step_seconds"])
            next(between, None)
            if not in_part and end_is_requested():
                break
    print("explained", loader.explain().replace("\n", "; "), flush=True)
    print("stats", json.dumps(loader.stats().as_dict()), flush=True)


if __name__ == "__main__":
    main()

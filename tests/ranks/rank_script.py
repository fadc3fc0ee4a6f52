"""One rank of a job, as a script: goes through its part of an image folder and prints each batch.

Arguments: the image folder, then ``name=value`` pairs, see ``OPTIONS``. A line that begins with
``pid`` tells the workers' pids, ``batch`` a digest of a batch, ``stats`` the loader's counters.
"""

import hashlib
import json
import logging
import os
import sys
import time

from conftest import train_transform
from torch.utils.data import Subset
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, WorkerPool

OPTIONS = {
    "global_manager": "auto",
    "large_rank": -1,  # its samples are the 20 largest of 40, those of others the smallest
    "epochs": 2,
    "repeats": 3,  # how often an epoch goes through the rank's samples
    "step_seconds": 0.0,
    "workers": 1,
    "pool": 0,  # whether the workers are those of a pool, which serve another loader, too
    "size": 224,
    "batch_size": 8,
    "tiny_batch_size": 4,
    "method": "fork",
    "log": 0,
}


def workers(options):
    if options["pool"]:
        return {"pool": WorkerPool(options["workers"], options["method"])}
    return {"num_workers": options["workers"], "multiprocessing_context": options["method"]}


def other(loader):
    """A loader of the same pool, asked for a batch now and then."""
    dataset = Subset(loader.dataset, loader.sampler[:8])
    return iter(FusionLoader(dataset, 4, pool=loader.pool, on_error="skip"))


def main() -> None:
    root, *pairs = sys.argv[1:]
    options = dict(OPTIONS)
    for pair in pairs:
        name, _, value = pair.partition("=")
        options[name] = type(OPTIONS[name])(value)
    if options["log"]:
        logging.basicConfig(stream=sys.stdout, format="log %(message)s", level=logging.INFO)
    rank = int(os.environ["LOCAL_RANK"])
    dataset = ImageFolder(root, train_transform(options["size"]))
    by_size = sorted(range(len(dataset)), key=lambda i: os.path.getsize(dataset.samples[i][0]))
    half = len(by_size) // 2
    mine = by_size[half:] if rank == options["large_rank"] else by_size[:half]
    loader = FusionLoader(
        dataset,
        options["batch_size"],
        sampler=mine * options["repeats"],
        **workers(options),
        seed=7,
        on_error="skip",
        timeout=60,
        tiny_batch_size=options["tiny_batch_size"],
        global_manager=options["global_manager"],
    )
    for _ in range(options["epochs"]):
        iterator = iter(loader)
        print("pid", *[process.pid for process in iterator._workers], flush=True)
        between = other(loader) if options["pool"] else iter(())
        for images, targets in iterator:
            digest = hashlib.sha256(images.numpy().tobytes() + targets.numpy().tobytes())
            print("batch", digest.hexdigest(), flush=True)
            time.sleep(options["step_seconds"])
            next(between, None)
    print("stats", json.dumps(loader.stats()), flush=True)


if __name__ == "__main__":
    main()

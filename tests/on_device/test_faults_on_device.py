"""Faults beside a CUDA device: killed GPU workers, a device without room, interrupted training."""

import os
import random
import signal
import threading
import time

import psutil
import pytest
import torch
from support.batches import same_batches
from torchvision import transforms as v1
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, GpuWorker

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
LEVEL = 1 / 255
PACKAGES = {"dali": "nvidia.dali", "torchvision": "torchvision"}


def loader_of(folder, **options):
    steps = v1.Compose([v1.RandomResizedCrop(64), v1.RandomHorizontalFlip(), v1.ToTensor()])
    options = {"num_workers": 2, "seed": 5, "persistent_workers": True, **options}
    if options["num_workers"] == 0:
        del options["persistent_workers"]
    return FusionLoader(ImageFolder(str(folder), steps), 20, **options)


def wanted(folder):
    return list(loader_of(folder, num_workers=0))


def check(batches, right):
    """To what torchvision's decoder makes of chroma; labels to the bit."""
    assert len(batches) == len(right)
    for (images, labels), (plain, others) in zip(batches, right, strict=True):
        assert torch.equal(labels.cpu(), others)
        apart = (images.cpu() - plain).abs().flatten(1).mean(1)
        assert apart.max() < 4 * LEVEL


def gpu_workers():
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if "fusionloader.gpu.worker" in " ".join(child.cmdline()):
                found.append(child.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(150)
@pytest.mark.parametrize("decoder", PACKAGES)
def test_gpu_workers_that_are_killed_at_any_moment_lose_nothing(image_folder, decoder):
    """Each time a moment after it has begun to make samples."""
    pytest.importorskip(PACKAGES[decoder])
    right, draw, killed = wanted(image_folder), random.Random(0), 0
    worker = GpuWorker(sharing="spatial", decoder=decoder)
    while killed < 6:
        with loader_of(image_folder, device="cuda", gpu_worker=worker) as loader:
            samples = 0
            while loader.stats().gpu_worker.get("gone") is None:
                loader.set_epoch(0)
                check(list(loader), right)
                if (made := loader.stats().gpu_worker["samples"]) > samples:
                    samples = made
                    threading.Timer(draw.uniform(0, 0.05), kill_all).start()
                    killed += 1
    print(f"{killed} killed")


def kill_all():
    for pid in gpu_workers():
        os.kill(pid, signal.SIGKILL)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(150)
@pytest.mark.parametrize("where", ["process", "thread", "none", "workers"])
@pytest.mark.parametrize("left", [1200, 60, 4])
def test_a_device_without_room_gives_right_batches_or_none(image_folder, where, left):
    """``left``: the MiB that are free when the loader begins."""
    right = wanted(image_folder)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    held = torch.empty(free - (left << 20), dtype=torch.uint8, device="cuda")
    decoder = "workers" if where == "workers" else "torchvision"
    sharing = {} if where == "workers" else {"sharing": "spatial", "where": where}
    worker = None if where == "none" else GpuWorker(decoder=decoder, **sharing)
    refused = False
    with loader_of(image_folder, device="cuda", gpu_worker=worker) as loader:
        until = time.monotonic() + 4
        while time.monotonic() < until:
            loader.set_epoch(0)
            try:
                check(list(loader), right)
            except torch.cuda.OutOfMemoryError:  # as of any tensor
                refused = True
        assert not refused or left == 4
        del held
        torch.cuda.empty_cache()
        loader.set_epoch(0)
        check(list(loader), right)
        print(refused, dict(loader.stats().gpu_worker))


class Interrupted(Exception):
    pass


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("gpu_worker", [None, "spatial", "thread", "workers"])
def test_training_that_is_interrupted_anywhere_finds_the_next_epoch_whole(image_folder, gpu_worker):
    """A signal's handler raises, between any two lines of training's side."""
    right, draw = wanted(image_folder), random.Random(1)
    worker = {
        None: None,
        "spatial": GpuWorker(sharing="spatial", decoder="torchvision"),
        "thread": GpuWorker(sharing="spatial", where="thread", decoder="torchvision"),
        "workers": GpuWorker(decoder="workers"),
    }[gpu_worker]

    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    interrupted = 0
    try:
        with loader_of(image_folder, device="cuda", gpu_worker=worker) as loader:
            check(list(loader), right)
            end = time.monotonic() + 10
            while time.monotonic() < end:
                batches = []
                try:
                    signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.0005, 0.02))
                    loader.set_epoch(0)
                    for batch in loader:
                        batches.append(batch)
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except Interrupted:
                    interrupted += 1
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
                check(batches, right[: len(batches)])
                loader.set_epoch(0)
                check(list(loader), right)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 5
    print(f"{interrupted} interrupted")


@pytest.mark.timeout(100)
def test_loaders_side_by_side_and_one_after_the_other(image_folder):
    """Training and validation, with a GPU worker each; then many short lives."""
    right = wanted(image_folder)
    workers = [GpuWorker(sharing="spatial", decoder="torchvision") for _ in range(2)]
    with (
        loader_of(image_folder, device="cuda", gpu_worker=workers[0]) as first,
        loader_of(image_folder, device="cuda", gpu_worker=workers[1]) as second,
    ):
        for _ in range(10):
            first.set_epoch(0)
            second.set_epoch(0)
            pairs = list(zip(first, second, strict=True))
            check([pair[0] for pair in pairs], right)
            check([pair[1] for pair in pairs], right)
    for _ in range(5):
        with loader_of(image_folder, device="cuda", gpu_worker=workers[0]) as loader:
            check(list(loader), right)
    assert not gpu_workers()


def test_a_loader_closed_in_the_middle_leaves_its_batches_whole(image_folder):
    right = wanted(image_folder)
    loader = loader_of(image_folder, device="cuda", num_workers=2)
    iterator = iter(loader)
    kept = [next(iterator)]
    torch.cuda._sleep(500_000_000)
    kept.append(next(iterator))
    loader.close()
    del loader, iterator
    host = [[part.cpu() for part in batch] for batch in kept]
    assert same_batches(host, right[:2])

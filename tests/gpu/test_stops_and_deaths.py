"""Epochs from two ends, while workers are stopped and killed at random: nothing is lost.

`make kills` runs as many epochs as it is asked for, of 2,000 images each.
"""

import os
import random
import signal
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from PIL import Image
from support.campaigns import KILLS, SEED, kills
from support.waiting import PATIENCE
from torchvision import transforms
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, GpuWorker

IMAGES, BATCH = (2000, 50) if KILLS else (200, 10)
STOPPED = 0.1  # of batches: a worker is stopped for a moment
KILLED = 0.002 if KILLS else 0.03  # it takes seconds until the next one takes part


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """Images of different sizes, none like another."""
    root = tmp_path_factory.mktemp("numbered")
    generator = np.random.default_rng(0)
    (root / "a").mkdir()
    for number in range(IMAGES):
        side = 24 + number % 40
        pixels = generator.integers(0, 256, (side, side, 3), np.uint8)
        pixels[side // 2 - 12 : side // 2] = number % 200, number // 200 * 20, 128
        Image.fromarray(pixels).save(root / "a" / f"{number:05}.jpg", quality=95, subsampling=0)
    transform = transforms.Compose([transforms.CenterCrop(24), transforms.PILToTensor()])
    return ImageFolder(str(root), transform)


class Trouble:
    """Stops workers for a moment, and kills some."""

    def __init__(self, generator, iterator):
        self._generator, self._iterator = generator, iterator
        self._going_on = []

    def make(self):
        chance = self._generator.random()
        victims = [worker for worker in self._iterator._workers if worker.is_alive()]
        if not victims or chance > KILLED + STOPPED:
            return
        victim = self._generator.choice(victims)
        if chance < KILLED:
            victim.kill()
        else:
            self._stop(victim.pid, self._generator.uniform(0, 0.05))

    def _stop(self, pid, seconds):
        def signalled(number):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return

        signalled(signal.SIGSTOP)
        going_on = threading.Timer(seconds, signalled, [signal.SIGCONT])
        going_on.start()
        self._going_on.append(going_on)

    def end(self):
        for timer in self._going_on:
            timer.join()


@pytest.mark.matrix
@pytest.mark.kills
@pytest.mark.usefixtures("any_may_die")
@pytest.mark.timeout(0)
def test_stops_and_deaths_lose_nothing(numbered):
    wanted = list(FusionLoader(numbered, BATCH, num_workers=1))
    generator = random.Random(SEED)
    done, taken = 0, 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        while done < kills(20):
            sharing = generator.choice(["spatial", "temporal"])
            worker = GpuWorker(device="cpu", sharing=sharing, decoder="torchvision")
            with FusionLoader(
                numbered, BATCH, num_workers=2, gpu_worker=worker, persistent_workers=True
            ) as loader:
                until_it_is_ready(loader)
                for _ in range(20):
                    same_under_trouble(loader, wanted, generator)
                    done += 1
                    if loader.stats().gpu_worker["gone"] is not None:
                        break
                taken += loader.stats().gpu_worker["samples"]
    print(f"{done} epochs, {taken} of {done * IMAGES} samples by GPU workers")
    assert taken > 0


def until_it_is_ready(loader):
    deadline = time.monotonic() + PATIENCE
    list(loader)
    while not loader._iterator._manager.queue.gpu_is_ready:
        assert time.monotonic() < deadline, loader.stats().gpu_worker
        list(loader)


def same_under_trouble(loader, wanted, generator):
    iterator = iter(loader)
    trouble = Trouble(generator, iterator)
    batches = []
    for batch in iterator:
        batches.append(batch)
        trouble.make()
    trouble.end()
    assert len(batches) == len(wanted)
    for (images, _), (expected, _) in zip(batches, wanted, strict=True):
        assert torch.equal(images, expected)

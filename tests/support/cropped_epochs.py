"""Epochs whose images are cropped without a resize, so that good decoders give the same bits."""

import torch

from fusionloader.gpu.control import GpuControl
from support.participants import participant
from support.waiting import wait_until

BATCHES = [list(range(start, start + 20)) for start in range(0, 40, 20)] * 3


def assert_epoch(loader, expected):
    loader.set_epoch(7)
    for (images, targets), (wanted, labels) in zip(list(loader), expected, strict=True):
        assert torch.equal(images, wanted)
        assert torch.equal(targets, labels)


def assert_epochs_until(loader, expected, condition):
    """Compares epochs with what CPU workers make, until something of the GPU worker is so."""

    def one_more():
        assert_epoch(loader, expected)
        return condition(loader.stats().gpu_worker)

    if not one_more():
        wait_while_it_is_built(loader)
        wait_until(one_more, "it has not come to that")


def wait_while_it_is_built(loader):
    """Epochs would take the GPU worker's time on the processors."""
    manager = loader._iterator._manager
    processes = participant(manager, GpuControl).processes
    wait_until(
        lambda: manager.queue.gpu_is_ready or not any(process.is_alive() for process in processes)
    )

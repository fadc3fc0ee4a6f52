"""Remote workers as processes of this machine, and loaders that they work for."""

import contextlib
import re
import signal
import subprocess
import sys

import numpy as np
import torch
from torchvision.datasets import ImageFolder

from fusionloader import FusionLoader, Remote
from support.images import train_transform

EPOCHS = 2


class RemoteWorker:
    """A process of ``python -m fusionloader worker``."""

    def __init__(self, token_file, address="127.0.0.3:0", cores=2, cwd=None):
        command = [sys.executable, "-m", "fusionloader", "worker", "--listen", address]
        command += ["--token-file", str(token_file), "--cores", str(cores)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cwd)
        line = self.process.stdout.readline()
        self.address = re.match(r"listening at (\S+), ", line)[1]

    @property
    def pid(self):
        return self.process.pid

    def send(self, number):
        self.process.send_signal(number)

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def folder_loader(folder, transform=None, **options):
    dataset = ImageFolder(str(folder), transform or train_transform())
    settings = {
        "batch_size": 10,
        "num_workers": 1,
        "seed": 3,
        "shuffle": True,
        "persistent_workers": True,
    } | options
    return FusionLoader(dataset, generator=torch.Generator().manual_seed(7), **settings)


def remote_loader(folder, workers, token_file, transform=None, offload="all", **options):
    """One whose remote workers get whatever they take."""
    data = options.pop("data", "auto")
    addresses = [getattr(worker, "address", worker) for worker in workers]
    remote = Remote(servers=addresses, token_file=str(token_file), offload=offload, data=data)
    return folder_loader(folder, transform, remote=remote, **options)


def batches_of(loader, epochs=EPOCHS):
    """The batches of some epochs, as arrays."""
    return [[tensor.numpy().copy() for tensor in batch] for _ in range(epochs) for batch in loader]


def assert_same(ours, wanted):
    assert len(ours) == len(wanted)
    for batch, other in zip(ours, wanted, strict=True):
        for one, two in zip(batch, other, strict=True):
            assert one.dtype == two.dtype
            np.testing.assert_array_equal(one, two)


STOP, GO_ON = signal.SIGSTOP, signal.SIGCONT

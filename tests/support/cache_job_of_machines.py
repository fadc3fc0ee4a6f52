"""A job on two machines: a process each, at a loopback address, with a cache of its own."""

import contextlib
import multiprocessing
import os
import signal
import socket

import torch
from torchvision.datasets import ImageFolder

from fusionloader import Cache, FusionLoader
from fusionloader.system.transport import peer
from support.images import train_transform
from support.waiting import PATIENCE


def free_addresses(*hosts):
    found = []
    for host in hosts:
        with socket.create_server((host, 0)) as taken:
            found.append(f"{host}:{taken.getsockname()[1]}")
    return found


class JobMachine:
    """Goes through the samples that it is told, and returns batches and what the cache counted."""

    def __init__(self, folder, environment, servers, token_file=None, patience=PATIENCE):
        """Waits ``patience`` seconds for other machines' answers."""
        context = multiprocessing.get_context("fork")
        self._pipe, theirs = context.Pipe()
        arguments = (theirs, folder, environment, servers, token_file, patience)
        self.process = context.Process(target=_train, args=arguments)
        self.process.start()
        theirs.close()

    def begin(self, items):
        """Goes through an epoch of so many samples."""
        self._pipe.send(items)

    def finish(self):
        """Returns batches and statistics of the epoch that was begun."""
        assert self._pipe.poll(PATIENCE), "the epoch does not end"
        return self._pipe.recv()

    def epoch(self, items):
        self.begin(items)
        return self.finish()

    def stats(self):
        """Returns what the cache counts by now."""
        return self.epoch(None)[1]

    def end(self):
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


def loader_of(folder, items, **options):
    """A loader whose sample of an item is the same on every machine, and without a cache."""
    dataset = ImageFolder(str(folder), train_transform())
    return FusionLoader(dataset, 5, sampler=items, num_workers=2, seed=3, **options)


def _train(pipe, folder, environment, servers, token_file, patience):
    peer._LEAST_SECONDS = peer._CONNECT_SECONDS = patience  # of workers that are forked from here
    # A holder of its own, as on another machine.
    runtime = f"{folder}-machine-{os.getpid()}"
    os.mkdir(runtime, 0o700)
    os.environ |= {"XDG_RUNTIME_DIR": runtime, **environment}
    torch.set_num_threads(1)
    cache = Cache("64MiB", servers=servers, token_file=token_file)
    items = []
    loader = loader_of(folder, items, cache=cache, multiprocessing_context="fork")
    with contextlib.suppress(EOFError):
        while True:
            asked, batches = pipe.recv(), []
            if asked is not None:
                items[:] = asked
                batches = [[tensor.numpy().copy() for tensor in batch] for batch in loader]
                if not asked:  # it has begun to serve, and trained nothing
                    loader.set_epoch(0)
            pipe.send((batches, loader.stats().cache))

"""Ranks that train on a stream are killed at random and resumed by others: each sample once.

A rank saves its state now and then. What it was given behind the last one is lost with it, and
delivered again. `make kills KILLS=1000` kills a thousand.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
from multiprocessing.connection import wait

import pytest
import torch
from support.campaigns import SEED, kills
from support.images import eval_transform
from support.tar_shards import image_shards
from support.waiting import PATIENCE

from fusionloader import FusionLoader
from fusionloader.data.sources import TarStream

COUNTS = (130, 3, 60, 107)
MOST_CPU_SECONDS = 0.015  # of a rank, until it is killed
KILL = signal.SIGPROF
FORK = multiprocessing.get_context("fork")


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shards")
    for name, data in image_shards(COUNTS).items():
        (folder / name).write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        stream = TarStream(
            f"file://{folder}/train-{{000..003}}.tar",
            transform=eval_transform(),
            shuffle_window=32,
        )
        next(iter(FusionLoader(stream)))  # what ranks would import otherwise, each for itself
        yield stream


def train(pipe, stream, epoch, ranks, rank, states, options, saves_every, begun, cpu_seconds):
    """A rank: delivers batches, and tells with each state what it was given since the last.

    The kernel ends it after so much CPU time of its own, wherever it is, however busy the machine:
    counted from its first batch if it is to have ``begun``, so that some always go on.
    """
    torch.set_num_threads(1)
    sampler = stream.sampler(seed=SEED, num_replicas=ranks, rank=rank)
    loader = FusionLoader(stream, sampler=sampler, **options)
    loader.set_epoch(epoch)
    if states:
        loader.load_state_dict(states, ranks="reshard")
    pipe.send_bytes(json.dumps([[], loader.state_dict()]).encode())
    signal.signal(KILL, signal.SIG_DFL)
    if not begun:
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
    given = []
    for number, (_, targets) in enumerate(loader):
        given += targets.tolist()
        if number % saves_every == 0:
            pipe.send_bytes(json.dumps([given, loader.state_dict()]).encode())
            given = []
        if begun and number == 0:
            signal.setitimer(signal.ITIMER_PROF, cpu_seconds)


class Rank:
    """A training process, and what it has said until it was killed."""

    def __init__(self, *arguments: object) -> None:
        self.pipe, end = FORK.Pipe(duplex=False)
        self.process = FORK.Process(target=train, args=(end, *arguments))
        self.process.start()
        end.close()
        self.delivered: list[int] = []
        self.state, self.over = None, False

    def hear(self) -> None:
        """Takes a state if it was saved whole."""
        try:
            given, self.state = json.loads(self.pipe.recv_bytes())
            self.delivered += given
        except (EOFError, OSError):  # a message that was cut off with the process
            self.over = True

    def close(self) -> int:
        """Returns how the process ended."""
        if not self.over:
            self.process.kill()
        self.process.join(PATIENCE)
        self.pipe.close()
        return self.process.exitcode


def trained(stream, epoch: int, states, chance: random.Random) -> tuple[list[int], list, int]:
    """Returns what one to eight ranks were given until each was killed, states, and how many."""
    ranks, with_workers = chance.randint(1, 8), chance.random() < 0.1
    running = []
    try:
        for rank in range(ranks):
            options = {
                "batch_size": chance.randint(1, 4),
                "num_workers": int(with_workers and rank == 0),  # and a process that reads ahead
            }
            ending = chance.random() < 0.8, chance.uniform(0.001, MOST_CPU_SECONDS)
            arguments = (epoch, ranks, rank, states, options, chance.randint(1, 2), *ending)
            running.append(Rank(stream, *arguments))
        while listening := {each.pipe: each for each in running if not each.over}:
            ready = wait(list(listening), PATIENCE)
            assert ready, "no rank goes on, and none ends"
            for pipe in ready:
                listening[pipe].hear()
    finally:
        endings = [each.close() for each in running]
    assert set(endings) <= {0, -KILL}, "a rank has failed, see its traceback"
    delivered = [sample for each in running for sample in each.delivered]
    return delivered, [each.state for each in running], endings.count(-KILL)


@pytest.mark.kills
def test_kills_and_resumes_over_one_to_eight_ranks_lose_and_repeat_nothing(stream):
    chance = random.Random(SEED)
    wanted, killed, epoch = kills(20), 0, 0
    while killed < wanted:
        delivered, states = [], None
        while len(delivered) < len(stream):
            given, states, more = trained(stream, epoch, states, chance)
            delivered, killed = delivered + given, killed + more
        assert sorted(delivered) == list(range(sum(COUNTS)))
        epoch += 1

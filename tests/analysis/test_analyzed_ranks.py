"""Jobs of several ranks under one analysis: phases change together, a stall is the rank's own."""

import json
import textwrap
import threading
from datetime import timedelta

import pytest
from support import torchrun, warm_start
from support.waiting import PATIENCE
from torch import distributed

from fusionloader.cli.analysis.errors import AnalysisError
from fusionloader.cli.analysis.phases import PhaseResult
from fusionloader.cli.analysis.ranks import AnalyzedRanks, together

SLOW = 0.005  # seconds of a sample of rank 1
TRAIN = f"""
import os, time
import torch
from torch import distributed
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

class Uneven(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        time.sleep({SLOW} if distributed.get_rank() else 0)
        return torch.ones(2)

distributed.init_process_group("gloo")
dataset = Uneven()
loader = DataLoader(dataset, 4, sampler=DistributedSampler(dataset))
for epoch in range(200):
    for x in loader:
        distributed.all_reduce(x)
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Returns a function that analyzes a script with two ranks, and returns what is written."""
    store = distributed.TCPStore(
        "127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=PATIENCE)
    )
    monkeypatch.chdir(tmp_path)

    def analyzed(lines, *options):
        (tmp_path / "train.py").write_text(textwrap.dedent(lines))
        command = ["fusionloader", "analyze", "--seconds", "0.02", "--json", "found.json", *options]
        own = {"MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        started = [
            warm_start.start("-m", *command, "train.py", path=[], **{**environ, **own})
            for environ in torchrun.environment(2)
        ]
        try:
            printed = [rank.stdout.read() for rank in started]
            assert [rank.wait() for rank in started] == [0, 0], printed
        finally:
            for rank in started:
                rank.kill()
        return printed, json.loads((tmp_path / "found.json").read_text())

    return analyzed


def test_the_stall_of_one_rank_is_that_of_the_job_and_not_the_training_of_the_other(job):
    printed, found = job(TRAIN, "--what-if", "workers=1,2")
    (loader,) = found["loaders"]
    assert "analysis of train.py (2 ranks; stopped" in printed[0] and not printed[1]
    assert set(loader["phases"]) == {"today", "memory", "warm"}
    for phase in ("today", "warm"):
        whole = loader["phases"][phase]
        first, second = (rank["phases"][phase] for rank in loader["ranks"])
        assert first["steps"] == second["steps"] == whole["steps"] >= 5
        assert second["waited"] >= 4 * SLOW * second["steps"]
        assert whole["waited"] >= max(first["waited"], second["waited"])
        assert whole["samples"] == first["samples"] + second["samples"]
    assert loader["phases"]["memory"]["waited"] == 0
    assert len(loader["what_if"]) == 3
    assert loader["loader"]["ranks"] == 2


def test_a_rank_that_is_started_without_torchrun_is_told_to_be(monkeypatch):
    with pytest.raises(AnalysisError, match="WORLD_SIZE is 2.*torchrun -m fusionloader analyze"):
        AnalyzedRanks.of(torchrun.environment(2)[0])


# ---- meetings, in threads ----------------------------------------------------------------------


def in_ranks(of_a_rank, count=2, **more):
    """Calls a function in a thread for each rank; returns what they return."""
    store, found = distributed.HashStore(), {}

    def run(rank):
        found[rank] = of_a_rank(AnalyzedRanks(store, rank, count, **more))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return [found[rank] for rank in range(count)]


def test_all_ranks_know_what_each_has_given():
    def meet(ranks):
        return [ranks.meet("a", ranks.rank), ranks.meet("a", -ranks.rank), ranks.meet("b", None)]

    assert in_ranks(meet, 3) == [[[0, 1, 2], [0, -1, -2], [None] * 3]] * 3


def test_ranks_of_a_machine_divide_its_cores():
    alone = AnalyzedRanks().cores
    assert in_ranks(lambda ranks: (ranks.cores, ranks.sharing)) == [(alone / 2, 2)] * 2


def test_a_loader_that_one_rank_alone_iterates_is_left_alone_by_all():
    def join(ranks):
        own = ranks.rank == 0 and ranks.join("validation")
        ranks.meet("rank 0 has seen that it is alone", None)
        late = ranks.join("validation")
        ranks._join_patience = PATIENCE  # both come to the next
        return own, late, ranks.join("training"), ranks.apart

    assert in_ranks(join, join_patience=0.1) == [(False, False, True, ["validation"])] * 2


def test_a_step_is_as_late_as_the_last_ranks_data():
    """Two ranks that stall in turn, 1 s each, in steps that take 1 s more."""
    results = [PhaseResult(4, 32, 8.0, 2.0, 0.5), PhaseResult(4, 32, 8.0, 2.0, 0.5)]
    job = together(results, [[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    assert (job.wait_share, job.rate, job.cpu_seconds) == (0.5, 8.0, 1.0)

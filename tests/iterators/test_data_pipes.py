"""DataPipes: torch's elements, each from one worker of one rank."""

import json
from pathlib import Path

import pytest
import torch
from support.torchrun import ranks
from torch.utils.data import DataLoader, MapDataPipe, get_worker_info
from torch.utils.data.datapipes.iter import IterableWrapper
from torch.utils.data.graph_settings import apply_sharding

from fusionloader import FusionLoader

RANK = """
import json
import torch.distributed as dist
from torch.utils.data.datapipes.iter import IterableWrapper
from fusionloader import FusionLoader

dist.init_process_group("gloo")
pipe = IterableWrapper(range(10)).sharding_filter()
loaders = [FusionLoader(pipe, batch_size=None, num_workers=workers) for workers in (0, 2)]
found, made = [None, None], list(map(list, loaders))
dist.all_gather_object(found, made)
print(json.dumps(found))
"""


class Sharded(MapDataPipe):
    """Items with the numbers that sharding gives."""

    shards = 0, 0  # until it is sharded

    def is_shardable(self):
        return True

    def apply_sharding(self, of, number):
        self.shards = of, number

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return torch.tensor([*self.shards, index])


def shard_otherwise(worker):
    apply_sharding(get_worker_info().dataset, 2, 1 - worker)


def epochs(loader_class, **options):
    pipe = IterableWrapper(list(range(30))).shuffle(buffer_size=5).sharding_filter()
    torch.manual_seed(7)
    loader = loader_class(pipe, batch_size=4, shuffle=True, **options)
    return [[batch.tolist() for batch in loader] for _ in range(2)]


@pytest.mark.parametrize("persistent_workers", [True, False])
@pytest.mark.parametrize("init", [None, shard_otherwise])
def test_workers_share_the_elements_as_torchs_do(persistent_workers, init):
    options = {"num_workers": 2, "persistent_workers": persistent_workers, "worker_init_fn": init}
    made = epochs(FusionLoader, **options)
    assert made == epochs(DataLoader, **options)
    assert [sorted(sum(epoch, [])) for epoch in made] == [list(range(30))] * 2


def test_ranks_share_the_elements(tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    printed = ranks(script, count=2, path=[str(Path(__file__).parents[2])])
    found = json.loads(printed.splitlines()[-1])
    assert [sorted(sum(made, [])) for made in zip(*found, strict=True)] == [list(range(10))] * 2


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pipe_of_a_map_is_sharded_as_torch_does(workers):
    made = list(FusionLoader(Sharded(), batch_size=4, num_workers=workers))
    if not workers:
        assert [batch[:, :2].tolist() for batch in made] == [[[1, 0]] * 4] * 2
        return
    assert [batch[:, 2].tolist() for batch in made] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert {tuple(item[:2].tolist()) for batch in made for item in batch} <= {(2, 0), (2, 1)}

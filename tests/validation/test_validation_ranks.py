"""Several ranks: wrapped and sharded models, and sums of all ranks."""

import functools

import pytest
import torch
from evaluations import by_hand, evaluate, loader_of, model_of
from torch import distributed, multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset

from fusionloader.addons.validation import OverlappedValidation, ValidationResult

RANKS = 2


def in_rank(rank, body, folder):
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    try:
        body(rank)
    finally:
        distributed.destroy_process_group()


def run_ranks(body, folder):
    multiprocessing.start_processes(
        in_rank, (body, folder), nprocs=RANKS, start_method="forkserver"
    )


def share_of(rank):
    """One rank's batches: uneven shares."""
    dataset = loader_of().dataset
    cut = 60
    indices = range(cut) if rank == 0 else range(cut, len(dataset))
    return DataLoader(Subset(dataset, indices), 10)


def added(model, loaders):
    """Sums of the ranks' loaders, added in their order."""
    each = [by_hand(model, loader) for loader in loaders]
    counts = [len(loader.dataset) for loader in loaders]
    return sum(e["right"] for e in each), sum(counts)


def with_ddp(rank):
    model = model_of()
    wrapped = torch.compile(DistributedDataParallel(model), backend="eager")
    with OverlappedValidation(evaluate, share_of(rank)) as validation:
        validation.start(wrapped, 0)
    [result] = validation.results()
    assert result.metrics == by_hand(model, share_of(rank))
    whole = result.all_reduce()
    right, count = added(model, [share_of(0), share_of(1)])
    assert whole.metrics["accuracy"] == right / count and whole.metrics["right"] == right
    assert (whole.samples, whole.batches) == (203, 6 + 15)
    found = [None] * RANKS
    distributed.all_gather_object(found, whole.metrics)
    assert found[0] == found[1]
    with pytest.raises(ValueError, match=r"results of the epochs 0, 1 \(skipped\)"):
        ValidationResult(rank, skipped=rank == 1).all_reduce()
    empty = ValidationResult(0) if rank else result
    assert empty.all_reduce().metrics["right"] == by_hand(model, share_of(0))["right"]


def with_fsdp(rank):
    mesh = init_device_mesh("cpu", (RANKS,))
    model, whole = model_of(), model_of()
    fully_shard(model, mesh=mesh)
    loader = loader_of()
    with pytest.raises(TypeError, match=r"sharded \(FSDP\).*replica="):
        OverlappedValidation(evaluate, loader).start(model, 0)
    make = functools.partial(model_of, 5)
    with OverlappedValidation(evaluate, loader, replica=make) as validation:
        for epoch in range(2):
            validation.start(model, epoch)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(2)
    expected = by_hand(whole, loader)
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.mul_(2)
    metrics = [result.metrics for result in validation.results()]
    assert metrics == [expected, by_hand(whole, loader)]
    assert metrics[0]["loss"] != metrics[1]["loss"]


@pytest.mark.parametrize("body", [with_ddp, with_fsdp])
def test_two_ranks_validate(body, tmp_path):
    run_ranks(body, tmp_path)


def test_sums_of_ranks_need_ranks():
    with pytest.raises(RuntimeError, match="after torch.distributed.init_process_group"):
        ValidationResult(0).all_reduce()

"""What lending from stock torch's allocator has to do; needs a device.

Each case returns the figures that it found, and raises AssertionError where something is wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from memory_cases import MIB, Case, Figures, lending, milliseconds, wait_until
from support.memory_peer import Peer

from fusionloader.gpu.caching_allocator import TorchAllocator
from fusionloader.gpu.memory_lender import MemoryLender, MemoryOptions
from fusionloader.scheduler.memory_lending import candidates
from fusionloader.transforms.executors.device.launch_memory import USEFUL_BYTES

_LIMIT = 10 << 30
# Without it cuBLAS may add in another order each time; read when torch first uses it.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def no_pool() -> Any:
    raise AssertionError("the borrower of these cases has its own")


def options(limit: int = _LIMIT) -> MemoryOptions:
    # What is late is an error of these cases, not of the borrower: give it time.
    return MemoryOptions(0, limit, True, TorchAllocator(0), no_pool, patience=10)


@contextmanager
def borrowing(limit: int = _LIMIT) -> Iterator[tuple[MemoryLender, Peer]]:
    """Training's end of lending, and a borrower that can open what is lent."""
    memory = MemoryLender(options(limit))
    ledger_handle = memory.open_ledger()
    assert ledger_handle is not None, memory.why_not
    with Peer(ledger_handle) as peer:
        session = memory._session
        assert session is not None
        peer.tell("probe")
        wait_until(session.prove, "the probe does not end")
        assert peer.answer() is None
        yield memory, peer
    memory.close()


def lend(memory: MemoryLender, peer: Peer) -> float:
    """Lends all that there is; returns the seconds that it took here."""
    peer.want(nbytes=_LIMIT)  # each time: who waits for a block wants nothing afterwards
    began = time.perf_counter()
    memory.lend()
    return time.perf_counter() - began


class Network:
    """A few large layers, and steps of training that leave memory cached."""

    def __init__(self) -> None:
        layers = [torch.nn.Linear(4096, 4096) for _ in range(4)]
        self.model = torch.nn.Sequential(*layers).cuda()
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.generator = torch.Generator("cuda").manual_seed(0)

    def step(self) -> float:
        batch = torch.randn(8192, 4096, device="cuda", generator=self.generator)
        loss = self.model(batch).square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return float(loss)

    def timed_step(self) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        self.step()
        torch.cuda.synchronize()
        return time.perf_counter() - began


def lending_takes_no_memory_and_touches_no_tensor() -> Figures:
    network = Network()
    before = [tensor.detach().clone() for tensor in network.model.parameters()]
    for _ in range(4):  # with the copies there, so that no later step needs more than was cached
        network.step()
    for tensor, kept in zip(network.model.parameters(), before, strict=True):
        kept.copy_(tensor.detach())
    torch.cuda.synchronize()
    lent, back = [], []
    with borrowing() as (memory, peer):
        reserved = torch.cuda.memory_reserved()
        for _ in range(5):
            lent.append(lend(memory, peer))
            assert memory._out, memory.why_not or "nothing was lent"
            nbytes = sum(grant.block.nbytes for grant in memory._out)
            peer.borrow(nbytes=20 * MIB)
            peer.tell("serve")
            began = time.perf_counter()
            memory.take_back(None)
            back.append(time.perf_counter() - began)
            peer.answer()
            assert not memory._out, "a block is still out"
            assert torch.cuda.memory_reserved() == reserved
    for tensor, kept in zip(network.model.parameters(), before, strict=True):
        assert torch.equal(tensor, kept), "a live tensor has changed"
    lendable_now = {whole: lendable(whole_segments_only=whole) for whole in (False, True)}
    warm = [network.timed_step() for _ in range(5)]
    assert torch.cuda.memory_reserved() <= reserved + 2 * MIB, "training had to allocate more"
    emptied = []
    for _ in range(5):
        torch.cuda.empty_cache()
        emptied.append(network.timed_step())
    return {
        "lent_mib": nbytes // MIB,
        "lendable_mib": lendable_now[False],
        "lendable_whole_segments_mib": lendable_now[True],
        "lend": milliseconds(lent),
        "take_back": milliseconds(back),
        "step": milliseconds(warm),
        "step_after_empty_cache": milliseconds(emptied),
    }


def lendable(*, whole_segments_only: bool) -> int:
    free = candidates(TorchAllocator(0).snapshot(), smallest=USEFUL_BYTES)
    counted = [claim for claim in free if claim.whole_segment or not whole_segments_only]
    return sum(claim.size for claim in counted) // MIB


def what_a_snapshot_costs() -> Figures:
    tensors = [torch.empty(5 * MIB, dtype=torch.uint8, device="cuda") for _ in range(500)]
    del tensors[::2]
    allocator, seconds, found = TorchAllocator(0), [], 0
    for _ in range(20):
        began = time.perf_counter()
        found = len(candidates(allocator.snapshot()))
        seconds.append(time.perf_counter() - began)
    assert found > 0
    return {"blocks": found, **milliseconds(seconds)}


def training_is_the_same_bit_for_bit() -> Figures:
    without, again = trained(lambda: None), trained(lambda: None)
    assert without == again, "training differs from run to run on this device, lending or not"
    lent = []
    with borrowing() as (memory, peer):

        def lend_for_a_moment() -> None:
            lend(memory, peer)
            lent.append(len(memory._out))
            if memory._out:
                peer.borrow(nbytes=20 * MIB)
                peer.tell("serve")
            memory.take_back(None)
            if lent[-1]:
                peer.answer()

        sharing = trained(lend_for_a_moment)
    assert sum(lent) > 0, "nothing was lent"
    assert without == sharing
    return {"lent_in_steps": sum(number > 0 for number in lent), "steps": len(lent)}


def trained(between_steps: Callable[[], None]) -> list[float]:
    """The losses of ResNet-18's first steps, and a sum over its weights."""
    import torchvision

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    model = torchvision.models.resnet18().cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    generator = torch.Generator("cuda").manual_seed(1)
    losses = []
    for _ in range(12):
        images = torch.randn(64, 3, 224, 224, device="cuda", generator=generator)
        labels = torch.randint(1000, (64,), device="cuda", generator=generator)
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
        del images, labels, loss
        between_steps()
    return losses + [float(tensor.double().sum()) for tensor in model.state_dict().values()]


def memory_of_graphs_is_not_lent() -> Figures:
    source = torch.ones(64 * MIB // 4, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        scratch = source * 3
        result = scratch + 1
        del scratch  # free for the allocator, and used whenever the graph is replayed
    with borrowing() as (memory, peer):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            lend(memory, peer)
            assert not memory._out, "lent while a graph is captured"
        hoard = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
        del hoard
        lend(memory, peer)
        assert memory._out, memory.why_not or "nothing was lent"
        peer.borrow(nbytes=20 * MIB)
        peer.fill(word=0xFFFFFFFF)
        graph.replay()
        torch.cuda.synchronize()
        assert bool((result == 4).all()), "a borrower wrote into a graph's memory"
        peer.give_back()
        memory.take_back(None)
    return {}


def torch_works_in_borrowed_memory_and_leaves_it_whole() -> Figures:
    with lending() as (lender, memory), Peer(lender.ledger_handle()) as peer:
        grant = lender.yield_block(memory.block())
        peer.borrow(nbytes=MIB)
        found = peer.torch_pool()
        grant.reclaim(60, "wait")
        memory.fill(7)
        assert memory.sample() == {7}
        assert found == {"within": True, "right": True, "raised": "OutOfMemoryError"}, found
        return {}


def dali_decodes_in_borrowed_memory_and_leaves_it_whole() -> Figures:
    with lending(4096 * MIB) as (lender, memory), Peer(lender.ledger_handle()) as peer:
        grant = lender.yield_block(memory.block())
        peer.borrow(nbytes=MIB)
        found = peer.dali_pool()
        grant.reclaim(60, "wait")
        memory.fill(7)
        assert memory.sample() == {7}
        assert found["mean_levels_apart"] < 1, found
        assert found["raised"] == "a shortage" and found["borrowed_mib"], found
        return found


def expandable_segments_are_declined() -> Figures:
    return declined("expandable_segments:True", "expandable_segments")


def the_cudamallocasync_allocator_is_declined() -> Figures:
    return declined("backend:cudaMallocAsync", "cudaMallocAsync")


_CONFIGURATION = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")  # the old name is the second


def declined(configuration: str, reason: str) -> Figures:
    """What a process says whose allocator cannot lend."""
    done = subprocess.run(
        [sys.executable, str(Path(__file__)), "why-not"],
        env={**os.environ, **dict.fromkeys(_CONFIGURATION, configuration)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    why_not = json.loads(done.stdout.splitlines()[-1])
    assert reason in why_not, why_not
    return {"why_not": why_not}


def print_why_not() -> None:
    tensor = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    del tensor
    memory = MemoryLender(options())
    if memory.why_not is None:
        with borrowing() as (memory, peer):
            lend(memory, peer)
    print(json.dumps(memory.why_not or "nothing keeps it from lending"))


CASES: list[Case] = [
    lending_takes_no_memory_and_touches_no_tensor,
    what_a_snapshot_costs,
    training_is_the_same_bit_for_bit,
    memory_of_graphs_is_not_lent,
    torch_works_in_borrowed_memory_and_leaves_it_whole,
    dali_decodes_in_borrowed_memory_and_leaves_it_whole,
    expandable_segments_are_declined,
    the_cudamallocasync_allocator_is_declined,
]

if __name__ == "__main__" and sys.argv[1:] == ["why-not"]:
    print_why_not()

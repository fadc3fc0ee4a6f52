"""One process lends GPU memory that it does not use now; another one works in it and returns it.

A program holds a large scratch tensor between its steps. While it waits, a helper process estimates
pi in that memory. When the program continues it reclaims the memory: the helper finishes its round
and returns it, or is killed.

    python examples/share_gpu_memory.py

Needs a CUDA device and PyTorch; nothing in it loads data.
"""

import multiprocessing
import sys
import time

import torch

from fusionloader.system.gpu_memory import (
    Borrower,
    LedgerHandle,
    Lender,
    MemorySharingError,
    borrow_block,
    reclaim_block,
    return_block,
    yield_block,
)

SCRATCH_BYTES = 1 << 30
WAITING_SECONDS = 3.0


def estimate_pi(ledger_handle: LedgerHandle) -> None:
    """The helper: works whenever there is memory to work in."""
    inside = total = 0
    with Borrower(ledger_handle) as borrower:
        while borrower.lender_lives and total == 0:
            try:
                mapping = borrow_block(64 << 20, timeout=10)
            except MemorySharingError as reason:
                print("helper:", reason)
                return
            points = torch.as_tensor(mapping, device="cuda").view(torch.float32).view(2, -1)
            while not mapping.revoked:
                points.uniform_()
                inside += int((points.square_().sum(0) < 1).sum())
                total += points.shape[1]
            del points  # no tensor may look into memory that is another's again
            return_block(mapping)
    print(f"helper: pi is about {4 * inside / total:.6f}, by {total:,} points")


def main() -> None:
    try:
        lender = Lender()
    except MemorySharingError as reason:
        sys.exit(f"this example needs a CUDA device: {reason}")
    with lender:
        context = multiprocessing.get_context("spawn")
        helper = context.Process(target=estimate_pi, args=(lender.ledger_handle(),))
        helper.start()
        scratch = torch.zeros(SCRATCH_BYTES, dtype=torch.uint8, device="cuda")
        grant = yield_block(scratch)
        print(f"program: lent {SCRATCH_BYTES >> 20} MiB, and waits")
        time.sleep(WAITING_SECONDS)
        begin = time.perf_counter()
        reclaim_block(grant, patience=1.0)
        print(f"program: had it back in {(time.perf_counter() - begin) * 1000:.1f} ms")
        scratch.zero_()
        helper.join()
        print("program:", lender.stats())


if __name__ == "__main__":
    main()

"""A borrower of the storm: borrows, looks, writes, returns, for ever. See test_storm.py.

Usage: storm_borrower.py DESCRIPTOR SEED. It ends with status 3 when a block is not as its lender
has left it, which happens when it was offered before the lender's own work was done.
"""

from __future__ import annotations

import os
import random
import sys

sys.path[:0] = os.environ["STORM_PATH"].split(os.pathsep)

from support.fake_cuda import FakeCuda  # noqa: E402

from fusionloader.system.gpu_memory import (  # noqa: E402
    Borrower,
    CudaError,
    LedgerHandle,
    NotOfferedError,
    PeerError,
)

LENDERS, BORROWERS = 0xA, 0xB  # highest four bits of what each side writes


def main() -> None:
    chance = random.Random(int(sys.argv[2]))
    fake = FakeCuda(os.environ["FUSIONLOADER_LIBCUDA"])
    borrower = Borrower(LedgerHandle(int(sys.argv[1])))
    streams = [fake.stream() for _ in range(2)]
    mark = BORROWERS << 28 | os.getpid()
    print("ready", flush=True)
    while True:
        try:
            mapping = borrower.borrow_block(1, timeout=1)
        except PeerError:
            return
        except (CudaError, NotOfferedError):
            continue  # the lender may have taken it back and freed it meanwhile
        found = fake.words(mapping.address, mapping.nbytes)
        if len(found) != 1 or found.pop() >> 28 != LENDERS:
            print("a block was offered before the lender's work was done", file=sys.stderr)
            sys.exit(3)
        for _ in range(chance.randrange(5)):
            fake.fill(mapping.address, mark, mapping.nbytes, chance.choice(streams))
            if borrower.revoked:
                break
        mapping.return_(chance.choice([streams, None]))


if __name__ == "__main__":
    main()

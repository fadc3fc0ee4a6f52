"""Slots that are used again, with an exception at any step."""

import contextlib
from functools import partial

import pytest
from support.raised_at import CALLS, Steps

from fusionloader.system.shm.forks import Fork
from fusionloader.system.shm.slots import SlotPool


class Device:
    """Locks nothing, and has passed every mark."""

    def lock(self, address, nbytes):
        pass

    def unlock(self, address):
        pass

    def mark(self):
        return self

    def query(self):
        return True

    def synchronize(self):
        pass


@pytest.fixture
def make_pool(make_control_block):
    """Returns a function that makes a pool of two spare slots."""

    def make(page_locking):
        block = make_control_block(1)
        return SlotPool(block.arena, block.manager, 2, page_locking)

    return make


def with_returned_slots(pool):
    """Slots that come back: one released, one dropped, one dropped that a child may have seen."""
    slots = [pool.acquire(1) for _ in range(4)]
    dropped, seen, kept = map(pool.view, slots[1:])
    for owner in (dropped, seen, kept):
        pool.lease(owner)
    del owner
    fork = Fork()
    fork.close_write()  # no child is left
    slots[2].forks.append(fork)
    pool.release(slots[0])
    return slots, kept


@pytest.mark.parametrize("page_locking", [None, Device()], ids=["pageable", "page-locked"])
def test_an_exception_where_slots_come_back_gives_none_to_two_batches(make_pool, page_locking):
    steps = Steps("system/shm/slots.py", events=(*CALLS, "c_return"))
    pool = make_pool(page_locking)
    slots, kept = with_returned_slots(pool)
    count = steps.count(partial(pool.acquire, 1))
    for position in range(count):
        pool = make_pool(page_locking)
        slots, kept = with_returned_slots(pool)
        with contextlib.suppress(KeyboardInterrupt):
            slots.append(steps.raise_at(position, KeyboardInterrupt(), partial(pool.acquire, 1)))
        assert len(slots) == 4, steps.place
        found = [pool.acquire(1).number for _ in range(6)]
        assert len(set(found)) == 6, steps.place
        assert slots[3].number not in found, steps.place
        if "in _collect" in steps.place:
            assert {slot.number for slot in slots[:3]} <= set(found), steps.place
    del kept

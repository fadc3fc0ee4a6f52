"""Loans of memory that is not there: the ledger alone does not touch it."""

import os

from fusionloader._native import cuda, testing
from fusionloader.system.limits import anonymous_memory

HANDLE, UUID = bytes(range(64)), bytes(range(16))


def lender_ledger(slots):
    fd = anonymous_memory.create("ledger", cuda.Lender.ledger_bytes(slots))
    try:
        return testing.LenderLedger(fd, slots)
    finally:
        os.close(fd)


def arm(lender, nbytes=4096, offset=512):
    return lender.arm(HANDLE, UUID, 1 << 30, offset, nbytes)


def lend(lender, nbytes=4096):
    ticket = arm(lender, nbytes)
    lender.publish(ticket)
    return ticket

"""Loans of memory that is not there: the ledger alone does not touch it."""

HANDLE, UUID = bytes(range(64)), bytes(range(16))


def arm(lender, nbytes=4096, offset=512):
    return lender.arm(HANDLE, UUID, 1 << 30, offset, nbytes)


def lend(lender, nbytes=4096):
    ticket = arm(lender, nbytes)
    lender.publish(ticket)
    return ticket

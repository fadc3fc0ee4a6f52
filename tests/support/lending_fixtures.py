"""A lender over the fake driver, and borrowers in processes of their own."""

import pytest

from fusionloader.system.gpu_memory import Lender
from support.memory_peer import Peer


@pytest.fixture
def lender(fake_cuda):
    made = Lender()
    yield made
    made.close()


@pytest.fixture
def start_borrower(lender, fake_cuda):
    """Starts borrowers, each a process; they end before the lender closes."""
    started = []

    def start(**environment):
        started.append(Peer(lender.ledger_handle(), **environment))
        return started[-1]

    yield start
    for remote in started:
        remote.end()


@pytest.fixture
def borrower(start_borrower):
    return start_borrower()

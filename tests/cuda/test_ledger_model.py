"""The protocol of the ledger, in every order of events."""

import pytest
from ledger_model import FAULTS, explore


@pytest.mark.parametrize("borrowers", [1, 2])
def test_no_order_of_events_harms_a_block_or_loses_it(borrowers):
    found = explore(borrowers=borrowers)
    assert found.problem is None, (found.problem, found.trace)
    assert found.states > 100


@pytest.mark.parametrize("fault", FAULTS)
def test_the_checker_finds_what_a_faulty_protocol_does(fault):
    found = explore(fault)
    assert found.problem is not None
    assert FAULTS[fault] in found.problem, found.trace

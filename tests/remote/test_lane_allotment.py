"""How lanes are shared out among workers."""

from hypothesis import given
from hypothesis import strategies as st

from fusionloader.sharing.remote.proxy.process import allot
from fusionloader.system.transport.address import Address

WORKERS = st.lists(st.integers(1, 1 << 40), max_size=100).map(
    lambda cores: {Address(f"cpu{n}", 1): each for n, each in enumerate(cores)}
)


@given(WORKERS, st.integers(0, 64))
def test_lanes_are_used_up_and_shared_evenly(cores, lanes):
    allotted = allot(cores, lanes)
    assert list(allotted) == list(cores)
    assert sum(allotted.values()) == min(lanes, sum(cores.values()))
    assert all(count <= cores[address] for address, count in allotted.items())
    short = [count for address, count in allotted.items() if count < cores[address]]
    if short:
        assert max(allotted.values()) <= min(short) + 1


def test_where_workers_are_more_than_lanes_the_first_have_one():
    cores = {Address(f"cpu{n}", 1): 8 for n in range(5)}
    assert list(allot(cores, 3).values()) == [1, 1, 1, 0, 0]

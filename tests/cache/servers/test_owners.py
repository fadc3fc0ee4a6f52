"""Who owns which sample, among servers that come and go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionloader.cache.servers.owners import Owners

NAMES = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=9, unique=True)
SEEDS = st.binary(max_size=40)
ITEMS = range(2000)


@pytest.mark.matrix
@given(NAMES, SEEDS, st.randoms(use_true_random=False))
def test_the_order_of_the_servers_does_not_matter(names, seed, random):
    other = random.sample(names, len(names))
    first, second = Owners(names, seed), Owners(other, seed)
    items = random.sample(range(1 << 60), 20)
    assert [first.owner(item) for item in items] == [second.owner(item) for item in items]


@given(NAMES, SEEDS, st.data())
def test_only_the_share_of_a_server_that_is_gone_moves(names, seed, data):
    gone = data.draw(st.sampled_from(names))
    owners = Owners(names, seed)
    for item in range(50):
        before, after = owners.owner(item), owners.owner(item, [gone])
        if before != gone:
            assert after == before
        else:
            assert after in set(names) - {gone} or after is None and len(names) == 1


@pytest.mark.parametrize("count", [2, 3, 7])
@pytest.mark.parametrize("seed", [b"", b"one dataset", bytes(32)])
def test_shares_are_even_and_so_is_what_a_gone_server_leaves(count, seed):
    names = [f"host{number}:7071" for number in range(count)]
    owners = Owners(names, seed)
    for gone in ([], names[:1]):
        share = [owners.owner(item, gone) for item in ITEMS]
        left = count - len(gone)
        for name in set(names) - set(gone):  # within 5 standard deviations
            assert abs(share.count(name) - 2000 / left) < 5 * (2000 / left) ** 0.5


def test_another_dataset_has_other_owners():
    names = ["a:1", "b:1"]
    first, second = Owners(names, b"first"), Owners(names, b"second")
    same = sum(first.owner(item) == second.owner(item) for item in ITEMS)
    assert 880 < same < 1120


@pytest.mark.parametrize("names", [[], ["a:1", "b:1", "a:1"]])
def test_no_servers_or_one_twice_are_refused(names):
    with pytest.raises(ValueError, match="several different names"):
        Owners(names, b"")

"""The samples of a mini-batch as bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionloader.sharing.jobs.sample_lists import (
    SampleLists,
    first_items,
    identity,
    pack,
    unpack,
)


@st.composite
def sample_lists(draw):
    count = draw(st.integers(0, 20))
    items = draw(st.lists(st.integers(-1, 2**62), min_size=count, max_size=count))
    keys = draw(st.lists(st.integers(0, 2**64 - 1), min_size=count, max_size=count))
    same = draw(st.booleans()) and min(items, default=0) >= 0
    counts = st.just(0) if draw(st.booleans()) else st.integers(0, 2**32 - 1)
    occurrences = draw(st.lists(counts, min_size=count, max_size=count))
    return SampleLists(items, items if same else keys, occurrences, list(range(count)))


@given(sample_lists())
def test_they_come_back_as_they_were(samples):
    assert unpack(pack(samples)) == samples


@given(sample_lists(), st.randoms(use_true_random=False))
def test_the_order_of_rows_makes_no_difference_and_all_else_does(samples, random):
    rows = list(samples.rows)
    random.shuffle(rows)
    assert identity(pack(samples._replace(rows=rows))) == identity(pack(samples))
    if samples.items:
        other = samples._replace(occurrences=[*samples.occurrences[:-1], 2**32 - 1])
        same = other.occurrences == samples.occurrences
        assert (identity(pack(other)) == identity(pack(samples))) is same


def test_what_is_cut_off_is_refused():
    raw = pack(SampleLists([1, 2], [1, 2], [0, 0], [0, 1]))
    with pytest.raises(ValueError, match=r"cut off|bytes length"):
        unpack(raw[:-4])


@pytest.mark.parametrize("count", range(7))
def test_the_first_items_can_be_read_of_what_is_shown(count):
    items = list(range(5, 5 + count))
    packed = pack(SampleLists(items, items, [1] * count, items))
    assert first_items(identity(packed)[:256]) == items[:4]

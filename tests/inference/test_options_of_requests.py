"""Amounts of time, and sizes of slots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionloader.addons.inference.memory import size_of_slot
from fusionloader.system.amounts import parse_seconds


@pytest.mark.parametrize(
    ("written", "seconds"), [("2ms", 0.002), (" 500 us ", 0.0005), ("1.5s", 1.5), (3, 3.0), (0, 0)]
)
def test_times_are_written_with_their_unit_or_in_seconds(written, seconds):
    assert parse_seconds(written) == pytest.approx(seconds)


@pytest.mark.parametrize("written", ["2", "-1s", -1, True, float("nan"), float("inf"), None])
def test_other_times_are_refused(written):
    with pytest.raises(ValueError, match="an amount of time"):
        parse_seconds(written)


@given(st.integers(0, 1 << 33), st.sampled_from([1, 4]))
def test_a_slot_is_large_enough_of_whole_pages_and_not_much_larger(nbytes, steps):
    size = size_of_slot(nbytes, steps)
    assert size >= nbytes and size % 4096 == 0
    assert size <= max(4096, nbytes * (2 if steps == 1 else 1.25) + 4096)
    assert size_of_slot(size, steps) == size


@given(st.lists(st.integers(0, 1 << 33), max_size=200))
def test_sizes_of_any_mix_are_few(sizes):
    assert len({size_of_slot(size, 1) for size in sizes}) <= 22

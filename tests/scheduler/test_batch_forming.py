"""When a dynamic batch is opened and closed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionloader.scheduler.batch_forming import BatchForming

TIMES = st.lists(st.floats(0, 10), min_size=1, max_size=60).map(sorted)


def batches_of(times, max_batch, max_delay):
    """Lists of the times at which the images of each batch came."""
    forming, batches = BatchForming(max_batch, max_delay), []
    for now in times:
        if forming.is_due(now):
            forming.close()
        row = forming.add(now)
        if row == 0:
            batches.append([])
        assert row == len(batches[-1])
        batches[-1].append(now)
    return batches


@given(TIMES, st.integers(1, 8), st.floats(0.001, 5))
def test_each_image_is_in_one_batch_that_is_neither_too_large_nor_too_late(
    times, max_batch, max_delay
):
    batches = batches_of(times, max_batch, max_delay)
    assert [now for batch in batches for now in batch] == times
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        assert len(batch) <= max_batch
        assert all(now < batch[0] + max_delay for now in batch)
        if following is not None:  # no batch was closed without need
            assert len(batch) == max_batch or following[0] >= batch[0] + max_delay


@given(TIMES, st.integers(1, 8))
def test_without_a_delay_each_image_is_a_batch_and_with_an_endless_one_all_are_full(times, size):
    batches = batches_of(times, size, math.inf)
    assert all(len(batch) == size for batch in batches[:-1])
    assert batches_of(sorted(set(times)), size, 0.0) == [[now] for now in sorted(set(times))]


def test_nothing_is_due_while_no_batch_is_open():
    forming = BatchForming(2, 1.0)
    assert not forming.is_due(1e9)
    assert forming.add(5.0) == 0
    assert forming.deadline == 6.0 and forming.is_due(6.0) and not forming.is_due(5.9)
    assert forming.add(5.5) == 1
    assert forming.rows == 0 and not forming.is_due(1e9)


def test_an_image_cannot_come_into_a_batch_that_is_due():
    forming = BatchForming(2, 1.0)
    forming.add(0.0)
    with pytest.raises(ValueError, match="close it"):
        forming.add(1.0)

"""Mini-batches that are ordered by file."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionloader.scheduler.tiny_batches import order_by_file

FILES = st.one_of(st.none(), st.integers(0, 9), st.text(max_size=2), st.tuples(st.integers(0, 3)))


@pytest.mark.properties
@given(files=st.lists(FILES, max_size=60), tiny_size=st.integers(1, 9))
def test_samples_of_one_file_are_side_by_side(files, tiny_size):
    rows = order_by_file(files, tiny_size)
    assert sorted(rows) == list(range(len(files)))
    tiny_batches = [rows[at : at + tiny_size] for at in range(0, len(rows), tiny_size)]
    assert all(part == sorted(part) for part in tiny_batches)
    places = [sorted({hash(files[row]) for row in part}) for part in tiny_batches]
    assert list(chain(*places)) == sorted(chain(*places))  # a file that goes on stands twice


@given(files=st.lists(st.integers(0, 9), max_size=60), other=st.lists(st.integers(0, 9)))
def test_files_have_the_same_order_in_all_mini_batches(files, other):
    def order(files):
        return list(dict.fromkeys(files[row] for row in order_by_file(files, 1)))

    both = order(files + other)
    assert order(files) == [file for file in both if file in files]

"""Which rows tensors are expected in: after batches of every form."""

from hypothesis import given
from hypothesis import strategies as st

from fusionloader.data.deferred.rows.layout import RowLayout

IMAGE, SMALL = ((3, 8, 8), "float32"), ((3, 4, 4), "float32")


def rows_of(layout, first, kinds):
    """The places of the tensors that are made next."""
    return [layout.place(first + number, kind) for number, kind in enumerate(kinds)]


def test_nothing_is_expected_of_a_first_batch():
    assert rows_of(RowLayout(), 0, [IMAGE] * 3) == [None] * 3


def test_the_next_batch_is_expected_to_be_like_the_last():
    layout = RowLayout()
    layout.collated([(IMAGE, [0, 1, 2, 3])])
    assert [place and place[1:] for place in rows_of(layout, 4, [IMAGE] * 4)] == [
        (0, 0),
        (0, 1),
        (0, 2),
        None,  # which a generator still looks at
    ]


def test_two_views_of_a_sample_go_into_two_columns():
    layout = RowLayout()
    layout.collated([(IMAGE, [0, 2, 4]), (SMALL, [1, 3, 5])])
    places = rows_of(layout, 6, [IMAGE, SMALL] * 2)
    assert [place[1:] for place in places] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_a_sample_that_is_made_before_its_batch_begins_has_a_row_there():
    layout = RowLayout()
    layout.collated([(IMAGE, [0, 1, 2])])
    batches = [place and place.batch for place in rows_of(layout, 3, [IMAGE] * 9)]
    assert batches == [3, 3, None, 6, 6, None, None, None, None]


def test_a_tensor_of_another_shape_has_no_row():
    layout = RowLayout()
    layout.collated([(IMAGE, [0, 1, 2])])
    assert layout.place(3, SMALL) is None


def test_an_epochs_last_batch_changes_nothing():
    layout = RowLayout()
    layout.collated([(IMAGE, [0, 1, 2, 3])])
    layout.collated([(IMAGE, [4, 5])])
    assert layout.place(8, IMAGE) == (6, 0, 2)


def test_a_sample_that_was_left_out_shifts_the_next_batch():
    layout = RowLayout()
    layout.collated([(IMAGE, [0, 1, 2])])
    layout.collated([(IMAGE, [3, 5, 6])])
    assert layout.place(7, IMAGE) == (7, 0, 0)


def test_shuffled_samples_have_no_rows():
    layout = RowLayout()
    layout.collated([(IMAGE, [0, 1, 2])])
    layout.collated([(IMAGE, [9, 4, 7])])
    assert rows_of(layout, 10, [IMAGE] * 3) == [None] * 3


def test_tensors_that_are_still_looked_at_have_no_rows_any_more():
    layout = RowLayout()
    layout.collated([(IMAGE, list(range(8)))])
    layout.retain(0, 2)
    assert layout.place(10, IMAGE) is None
    assert layout.place(11, IMAGE) is not None


def test_a_dataset_that_keeps_its_samples_gets_no_rows_for_good():
    layout = RowLayout()
    layout.collated([(IMAGE, [0, 1, 2, 3])])
    for row in range(3):
        layout.retain(0, row)
    layout.collated([(IMAGE, [4, 5, 6, 7])])
    assert rows_of(layout, 8, [IMAGE] * 4) == [None] * 4


def test_tensors_that_others_made_are_no_part_of_it():
    layout = RowLayout()
    layout.collated([(SMALL, [None] * 3), (IMAGE, [0, 1, 2])])
    layout.collated([(SMALL, [None] * 3), (IMAGE, [3, None, 5])])
    assert layout.place(6, IMAGE) == (6, 0, 0)


numbers = st.one_of(st.none(), st.integers(0, 30))
column = st.tuples(st.sampled_from([IMAGE, SMALL]), st.lists(numbers, min_size=1, max_size=6))


@given(st.lists(st.lists(column, max_size=3), max_size=6))
def test_whatever_is_collated_no_two_tensors_have_one_row(batches):
    layout = RowLayout()
    for batch in batches:
        begin = layout.collated(batch)
        given_rows = [
            place
            for number in range(40)
            for kind in (IMAGE, SMALL)
            if (place := layout.place(number, kind)) is not None
        ]
        assert len(set(given_rows)) == len(given_rows)
        assert all(place.batch >= begin for place in given_rows)
        assert all(place.row < layout.columns[place.column].rows for place in given_rows)

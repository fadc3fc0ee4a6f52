"""The table of a dataset: what is in it, and how it goes."""

import os

import pytest

from fusionloader.cache.tiers import dataset_table
from fusionloader.cache.tiers.dataset_table import DatasetTable

PATHS = ["/a/b.jpg", "", "/ü/\udcff.png"]


def test_paths_are_found_again_whatever_their_bytes():
    table = DatasetTable.of_files(PATHS, [3, 1, 2])
    assert [table.path(item) for item in range(3)] == [os.fsencode(path) for path in PATHS]
    assert table.targets.tolist() == [3, 1, 2] and len(table) == 3


def test_a_hundred_thousand_paths_are_where_their_numbers_say():
    paths = [f"/data/é{number}/{'x' * (number % 7)}.jpg" for number in range(100_000)]
    table = DatasetTable.of_files(paths, range(len(paths)))
    assert [os.fsdecode(table.path(item)) for item in range(len(paths))] == paths
    assert table.targets.tolist() == list(range(len(paths)))


def test_a_path_with_a_null_character_is_refused():
    with pytest.raises(ValueError, match="null character"):
        DatasetTable.of_files(["/a\0b"], [0])


def test_a_table_that_outlives_the_modules_closes_its_descriptor(monkeypatch):
    table = DatasetTable.of_files(PATHS, [0, 0, 0])
    descriptor = table.fd
    monkeypatch.setattr(dataset_table, "os", None)  # as at the end of Python
    table.__del__()
    with pytest.raises(OSError):
        os.fstat(descriptor)

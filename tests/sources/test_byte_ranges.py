"""Ranges of bytes: their values, invalid arguments, and reading them."""

import os
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionloader.cache.range_reading import is_url, read_range
from fusionloader.data.sources import ByteRanges, ShardChanged, byte_ranges

URLS = ["s3://bucket/a.tar", "s3://bucket/b.tar"]
COLUMNS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, (1 << 40) - 1), st.integers(1, (1 << 32) - 1))
)


@given(COLUMNS)
def test_ranges_give_back_what_they_were_made_of(columns):
    file, offset, nbytes = zip(*columns, strict=True) if columns else ((), (), ())
    ranges = ByteRanges(URLS, file, offset, nbytes)
    found = zip(ranges.file.tolist(), ranges.offset.tolist(), ranges.nbytes.tolist(), strict=True)
    assert list(found) == columns and len(ranges) == len(columns)
    assert [(URLS.index(at.file), *at[1:3]) for at in map(ranges.at, range(len(ranges)))] == columns
    again = pickle.loads(pickle.dumps(ranges))
    assert np.array_equal(again.packed, ranges.packed) and again.files == ranges.files


def test_some_of_the_ranges_are_of_the_same_files():
    ranges = ByteRanges(URLS, [0, 1, 0], [5, 6, 7], [1, 2, 3])
    assert [ranges.of([2, 1]).at(item) for item in (0, 1)] == [ranges.at(2), ranges.at(1)]


def test_a_range_takes_twelve_bytes():
    ranges = ByteRanges(URLS, np.zeros(1000, np.uint32), np.arange(1000), np.ones(1000, np.int64))
    assert ranges.packed.nbytes + ranges.nbytes.nbytes == 12_000


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        (([0], [1, 2], [3]), "1, 2 and 1 of them"),
        (([2], [0], [1]), "file 2 of sample 0: there are 2 files"),
        (([-1], [0], [1]), "file -1 of sample 0"),
        (([0], [1 << 40], [1]), "offset 1099511627776 of sample 0: files have at most 1 TiB"),
        (([0], [-1], [1]), "offset -1 of sample 0"),
        (([0, 0], [0, 1], [5, 0]), "sample 1 has no bytes"),
        (([0], [0], [1 << 32]), "images have less than 4 GiB"),
        (([0], [0.5], [1]), "offset is one integer per sample, not float64"),
    ],
)
def test_numbers_out_of_range_are_named(columns, why):
    with pytest.raises(ValueError, match=why):
        ByteRanges(URLS, *columns)


@pytest.mark.parametrize("of_url", [False, True])
def test_a_range_that_ends_beyond_its_file_is_refused_before_it_is_read(tmp_path, of_url):
    path = tmp_path / "shard"
    path.write_bytes(bytes(3000))
    files, stamps = ([URLS[0]], np.array([[3000, 1]])) if of_url else ([path], None)
    assert len(ByteRanges(files, [0, 0], [0, 1000], [3000, 2000], stamps=stamps)) == 2
    with pytest.raises(ValueError, match=r"sample 1 ends at byte 4294967295 .* has 3000 bytes"):
        ByteRanges(files, [0, 0], [0, 0], [3000, (1 << 32) - 1], stamps=stamps)


def test_local_files_and_urls_are_not_mixed():
    with pytest.raises(ValueError, match="1 of 2 files are URLs: .* make two"):
        ByteRanges([URLS[0], __file__], [0], [0], [1])


def test_too_many_files_are_refused_with_what_to_do(monkeypatch):
    monkeypatch.setattr(byte_ranges, "MOST_FILES", 1)
    with pytest.raises(ValueError, match="2 files, the most are 1: write them as shards"):
        ByteRanges(URLS, [0, 1], [0, 0], [1, 1])


def test_packed_arrays_of_other_types_or_files_are_refused():
    with pytest.raises(ValueError, match="uint64 and uint32 arrays of one length, not int64"):
        ByteRanges.of_packed(URLS, np.zeros(1, np.int64), np.ones(1, np.uint32))
    with pytest.raises(ValueError, match="file 2 of a range, but there are 2 files"):
        ByteRanges.of_packed(URLS, np.array([2 << 40], np.uint64), np.ones(1, np.uint32))
    with pytest.raises(ValueError, match=r"stamps are int64 of shape \(2, 2\)"):
        ByteRanges(URLS, [0], [0], [1], stamps=np.zeros((1, 2), np.int64))


def test_a_file_that_is_not_there_is_missed_at_once(tmp_path):
    with pytest.raises(FileNotFoundError, match="train-7"):
        ByteRanges([tmp_path / "train-7.tar"], [0], [0], [1])


def test_ranges_cannot_be_changed():
    ranges = ByteRanges(URLS, [0], [0], [1])
    with pytest.raises(AttributeError, match="read-only"):
        ranges.files = ()
    with pytest.raises(AttributeError, match="read-only"):
        del ranges.files
    with pytest.raises(ValueError, match="read-only"):
        ranges.packed[0] = 1


@pytest.mark.parametrize("file", ["/data/a.tar", "a.tar", "./s3/a", "a b://c", "C", "://x", ""])
def test_a_path_is_no_url(file):
    assert not is_url(file)


@pytest.mark.parametrize("file", ["s3://b/a", "hf://x", "memory://a", "simplecache::s3://b/a"])
def test_names_with_a_scheme_are_urls(file):
    assert is_url(file)


@pytest.fixture
def shard(tmp_path):
    path = tmp_path / "train-3.tar"
    path.write_bytes(bytes(range(100)))
    return path


def test_a_range_is_read_as_it_was_written(shard):
    where = ByteRanges([shard], [0], [30], [40]).at(0)
    assert read_range(where) == bytes(range(30, 70))


def _removed(shard):
    shard.unlink()


def _touched(shard):
    os.utime(shard, ns=(1, 1))


def _longer(shard):
    shard.write_bytes(bytes(101))


@pytest.mark.parametrize(
    ("change", "why"), [(_removed, "is gone"), (_touched, "was modified"), (_longer, "101 bytes")]
)
def test_a_shard_that_changed_is_named_with_the_sample_and_what_to_do(shard, change, why):
    where = ByteRanges([shard], [0], [30], [40]).at(0)
    change(shard)
    with pytest.raises(ShardChanged, match=f"train-3.*{why}.*is cats/5.jpg: .*index it again"):
        read_range(where, lambda: "cats/5.jpg")


def test_a_range_beyond_the_end_is_no_sample(shard):
    where = ByteRanges([shard], [0], [90], [10]).at(0)
    for nbytes in (20, 1 << 40):  # no memory is taken for either
        with pytest.raises(ShardChanged, match=f"ends before byte {90 + nbytes}"):
            read_range(where._replace(nbytes=nbytes))

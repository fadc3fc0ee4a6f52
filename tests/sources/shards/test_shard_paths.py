"""Paths of shards, and files that addresses are mapped from."""

import ctypes
import mmap
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusionloader.data.sources.shards.mapped_files import MappedFiles
from fusionloader.data.sources.shards.shard_paths import braces_expanded, shard_paths


@given(st.integers(0, 200), st.integers(0, 200), st.integers(1, 6))
def test_numbers_in_braces_are_counted_with_the_width_of_the_first(first, more, width):
    names = braces_expanded(f"train-{{{first:0{width}d}..{first + more}}}.tar")
    assert names == [f"train-{n:0{width}d}.tar" for n in range(first, first + more + 1)]


def test_braces_are_combined():
    assert braces_expanded("{a,b}/{8..10}") == ["a/8", "a/9", "a/10", "b/8", "b/9", "b/10"]
    assert braces_expanded("plain") == ["plain"]
    with pytest.raises(ValueError, match="counts from 9 down to 3: write"):
        braces_expanded("{9..3}")
    for many in ("{0..999999999999}", "{1..2000}{1..2000}"):
        with pytest.raises(ValueError, match="more than 1000000 shards"):
            braces_expanded(many)


def test_folders_patterns_and_lists_are_looked_up(tmp_path):
    for name in ("b.tar", "a.tar", "c.txt", "[x].tar"):
        (tmp_path / name).touch()
    at = [str(tmp_path / name) for name in ("[x].tar", "a.tar", "b.tar")]
    assert shard_paths(tmp_path, ".tar") == tuple(at)
    assert shard_paths(str(tmp_path / "?.tar"), ".tar") == tuple(at[1:])
    assert shard_paths([at[2], tmp_path / "{a,[x]}.tar"], ".tar") == (at[2], at[1], at[0])


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no \.tar files"):
        shard_paths(tmp_path, ".tar")
    with pytest.raises(FileNotFoundError, match=r"no file .*t-1\.tar' \(of .*t-\{0\.\.1\}\.tar'\)"):
        (tmp_path / "t-0.tar").touch()
        shard_paths(tmp_path / "t-{0..1}.tar", ".tar")
    with pytest.raises(FileNotFoundError, match="the list of .tar files is empty"):
        shard_paths([], ".tar")
    with pytest.raises(ValueError, match="is a URL, and these shards are local"):
        shard_paths("s3://bucket/train-{0..9}.tar", ".tar")


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/maps")
def test_addresses_of_mapped_files_have_places(tmp_path):
    path = tmp_path / "a file\nof two lines"
    path.write_bytes(bytes(3 * mmap.PAGESIZE))
    with open(path, "r+b") as file:
        mapping = mmap.mmap(file.fileno(), 2 * mmap.PAGESIZE, offset=mmap.PAGESIZE)
    anchor = ctypes.c_char.from_buffer(mapping)
    address = ctypes.addressof(anchor)
    place = MappedFiles().find_place(address + 5)
    assert place == (str(path), mmap.PAGESIZE + 5, 2 * mmap.PAGESIZE - 5)
    assert MappedFiles().find_place(ctypes.addressof(ctypes.create_string_buffer(8))) is None
    path.unlink()
    with pytest.raises(FileNotFoundError, match="was deleted or replaced"):
        MappedFiles().find_place(address)
    del anchor
    mapping.close()

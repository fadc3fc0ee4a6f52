"""What analyze() takes samples to read: bytes of ranges, not the shards that they lie in."""

import itertools
import os
from pathlib import Path

import pytest
from support.shards import shards_of
from support.tar_shards import jpeg
from torch.utils.data import Dataset, Subset

from fusionloader.cli.analysis import files
from fusionloader.cli.analysis.files import FilePart


@pytest.fixture
def ranged(train_set, tmp_path):
    return shards_of(train_set, tmp_path)


def test_a_sample_of_a_shard_takes_its_range_and_not_the_shard(ranged, train_set):
    parts = files.parts_of(ranged, [0, 7, 39])
    sizes = {index: os.path.getsize(train_set.samples[index][0]) for index in (0, 7, 39)}
    assert files.sizes_of(parts) == sizes
    for index, (part,) in parts.items():
        with open(part.path, "rb") as file:
            file.seek(part.offset)
            assert file.read(part.nbytes) == Path(train_set.samples[index][0]).read_bytes()
    assert files.sizes_of(files.parts_of(train_set, [0, 7, 39])) == sizes


def test_a_part_of_a_dataset_has_the_ranges_of_its_samples(ranged):
    part = Subset(Subset(ranged, [5, 3, 8]), [2, 0])
    whole = files.parts_of(ranged, [8, 5])
    assert files.parts_of(part, [0, 1]) == {0: whole[8], 1: whole[5]}


class OpensTwo(Dataset):
    def __init__(self, paths):
        self.paths = paths

    def __getitem__(self, index):
        return b"".join(Path(path).read_bytes() for path in self.paths)


def test_of_user_code_whole_files_are_counted(tmp_path):
    for name, size in (("a", 3000), ("b", 500)):
        (tmp_path / name).write_bytes(bytes(size))
    parts = files.parts_of(OpensTwo([tmp_path / "a", tmp_path / "b"]), [4])
    assert parts == {4: [FilePart(f"{tmp_path}/a", 0, 3000), FilePart(f"{tmp_path}/b", 0, 500)]}
    assert files.sizes_of(parts) == {4: 3500}


def test_rates_are_those_of_the_bytes_that_samples_take(ranged):
    parts = [part for (part,) in files.parts_of(ranged, range(40)).values()]
    rates = files.read_rates(parts, readers=2)
    assert rates.mean_bytes == ranged.byte_ranges().nbytes.mean()
    assert rates.memory > 0


def test_formats_are_told_from_the_first_bytes_of_a_range(tmp_path):
    data = jpeg(1) + b"\x89PNG" + bytes(100)
    (tmp_path / "shard").write_bytes(data)
    path, size = f"{tmp_path}/shard", len(jpeg(1))
    assert files.is_jpeg(FilePart(path, 0, size))
    assert not files.is_jpeg(FilePart(path, size, 104))


@pytest.mark.parametrize(("share", "outside"), [(0.0, 10), (0.25, 7), (0.7, 3), (1.0, 0)])
def test_a_file_cache_lacks_the_rest_of_the_files_evenly_among_them(share, outside):
    lacking = sorted(files.outside_cache(range(10), share))
    assert len(lacking) == outside
    gaps = [later - earlier for earlier, later in itertools.pairwise(lacking)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_a_range_is_dropped_from_its_first_byte_to_its_last(tmp_path):
    path = tmp_path / "shard"
    with open(path, "wb") as file:
        file.write(bytes(64 * 4096))
        os.fsync(file.fileno())
    files.warm([FilePart.whole(str(path))])
    part = FilePart(str(path), 16 * 4096 + 100, 8 * 4096)
    assert in_memory(path, part.offset) is not False
    if files.drop(part) is None:
        pytest.skip("the file system does not tell what is in memory")
    assert not in_memory(path, part.offset) and not in_memory(path, part.offset + part.nbytes - 1)


def in_memory(path, offset):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.preadv(descriptor, [bytearray(1)], offset, os.RWF_NOWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return True

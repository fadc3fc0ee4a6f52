"""Parquet files unpacked once: shared, made again when they change, whole or not there."""

import errno
import functools
import multiprocessing
import os
import pathlib
import random
import resource
import signal
import time

import pytest
from support.shard_writers import rows_of, written

from fusionloader.data.sources import ParquetImages
from fusionloader.data.sources.shards.unpacked_files import Unpacking, unpacked

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

forking = multiprocessing.get_context("fork")


def write(path, data, **columns):
    pq.write_table(pa.table({"image": data, **(columns or {"label": [0] * len(data)})}), path)


@pytest.fixture
def opened(tmp_path):
    def open_images(pattern="*.parquet", **options):
        return ParquetImages(tmp_path / pattern, unpack_to=tmp_path / "unpacked", **options)

    return open_images


def test_a_file_is_unpacked_once(tmp_path, opened, eval_set):
    write(tmp_path / "a.parquet", [data for data, _ in rows_of(eval_set)])
    opened()
    (made,) = (tmp_path / "unpacked").iterdir()
    before = written(made)
    opened()
    assert written(made) == before and len(list(made.parent.iterdir())) == 1


def test_a_file_that_changed_is_unpacked_again(tmp_path, opened):
    write(tmp_path / "a.parquet", [b"first", b"second"])
    assert opened().read_encoded(1) == (b"second", 0)
    write(tmp_path / "a.parquet", [b"third", b"fourth!"])
    assert opened().read_encoded(1) == (b"fourth!", 0)


def test_an_earlier_result_is_removed_a_week_after_its_last_use(tmp_path, opened):
    def use_last(days_ago):
        ns = time.time_ns() - days_ago * 24 * 3600 * 10**9
        os.utime(earlier, ns=(ns, earlier.stat().st_mtime_ns))

    path = tmp_path / "a.parquet"
    write(path, [b"first", b"second"])
    opened()
    (earlier,) = (tmp_path / "unpacked").iterdir()
    use_last(days_ago=8)
    images = opened()
    # As in the copy of another machine or container, which has the same cache folder.
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    opened()
    assert images.read_encoded(1) == (b"second", 0)
    use_last(days_ago=8)
    opened()
    assert not earlier.exists() and len(list((tmp_path / "unpacked").iterdir())) == 1


def test_samples_are_named_by_file_and_row(tmp_path, opened):
    for name in "ab":
        write(tmp_path / f"{name}.parquet", [b"first", b"second"])
    assert opened().name(3) == "b.parquet: row 1"


def test_a_result_that_was_damaged_is_refused(tmp_path, opened):
    write(tmp_path / "a.parquet", [b"first", b"second"])
    opened()
    (made,) = (tmp_path / "unpacked").iterdir()
    os.truncate(made, made.stat().st_size - 3)
    with pytest.raises(ValueError, match="is not what was unpacked: remove it"):
        opened()


def test_the_users_cache_folder_is_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write(tmp_path / "a.parquet", [b"first"])
    (path,) = ParquetImages(tmp_path / "a.parquet").byte_ranges().files
    assert path.startswith(str(tmp_path / "cache" / "fusionloader" / "unpacked"))


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({}, {"image": "img"}, r"a\.parquet' has no column 'img': its columns are image \(binary"),
        ({}, {"target": "y"}, r"has no column 'y': its columns are image .*label.*choose with"),
        ({"label": ["x", "y"]}, {}, "are string, not integers: give a target_transform"),
        ({"label": [1, None]}, {}, "row 1 of .*a.parquet' has no 'label'"),
        (
            {"label": [[1], [2]]},
            {"image": "label", "target": None},
            "encoded images are binary values",
        ),
    ],
)
def test_columns_that_do_not_fit_are_named(tmp_path, opened, columns, options, message):
    write(tmp_path / "a.parquet", [b"first", b"second"], **columns)
    with pytest.raises(ValueError, match=message):
        opened(**options)


def test_a_row_without_an_image_is_named(tmp_path, opened):
    write(tmp_path / "a.parquet", [b"first", None, b"third"])
    with pytest.raises(ValueError, match=r"row 1 of .*a\.parquet' has no bytes in 'image'"):
        opened()
    assert not list((tmp_path / "unpacked").iterdir())


def test_files_that_are_not_parquet_or_not_there_are_named(tmp_path, opened):
    with pytest.raises(FileNotFoundError, match=r"no file .*none-\*\.parquet"):
        opened("none-*.parquet")
    (tmp_path / "a.parquet").write_bytes(b"text")
    with pytest.raises(ValueError, match=r"a\.parquet' is no whole Parquet file"):
        opened()


def test_whatever_is_damaged_in_a_file_is_said_with_its_name(tmp_path, opened, eval_set):
    """Cut off, bits flipped in headers, pages and the footer, parts filled with zeros."""
    path, draw = tmp_path / "a.parquet", random.Random(0)
    images = [data for data, _ in rows_of(eval_set)]
    errors = 0
    for number in range(60):
        pq.write_table(
            pa.table({"image": images, "label": list(range(len(images)))}),
            path,
            compression=("NONE", "SNAPPY")[number % 2],
            row_group_size=10,
        )
        data = bytearray(path.read_bytes())
        how = number % 4
        if how == 0:
            del data[draw.randrange(len(data)) :]
        for _ in range(3 if how in (1, 2) else 0):
            data[-draw.randrange(1, 1500 if how == 1 else len(data))] ^= 1 << draw.randrange(8)
        if how == 3:
            at = draw.randrange(len(data) - 200)
            data[at : at + 200] = bytes(200)
        path.write_bytes(data)
        try:
            opened()  # it may be the bytes of an image, of which Pillow says what is wrong
        except ValueError as error:
            assert str(path) in str(error)
            errors += 1
    assert errors > 20


def test_room_is_checked_before(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"shard")
    work = Unpacking(str(source), "all", 1 << 60, lambda file: pytest.fail("it began"))
    with pytest.raises(OSError, match=r"no room to unpack.*unpack_to="):
        unpacked([work], tmp_path / "unpacked")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EFBIG])
def test_a_disk_that_fills_while_it_is_written_is_no_room_and_keeps_nothing(tmp_path, code):
    source = tmp_path / "source"
    source.write_bytes(b"shard")

    def write(file):
        file.write(b"half")
        if code == errno.ENOSPC:
            with open("/dev/full", "wb") as full:
                full.write(b"whole")
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
        try:
            file.write(bytes(1 << 16))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    with pytest.raises(OSError, match=r"no room to unpack.*unpack_to="):
        unpacked([Unpacking(str(source), "all", 1, write)], tmp_path / "to")
    assert not list((tmp_path / "to").iterdir())


def test_a_killed_process_leaves_nothing_that_is_used(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(b"shard")

    def write_and_die(file):
        file.write(b"half")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    killed = forking.Process(
        target=unpacked, args=([Unpacking(str(source), "all", 4, write_and_die)], tmp_path / "to")
    )
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL and len(list((tmp_path / "to").iterdir())) == 1
    whole = Unpacking(str(source), "all", 5, lambda file: file.write(b"whole"))
    (path,) = unpacked([whole], tmp_path / "to")
    assert (
        pathlib.Path(path).read_bytes() == b"whole" and len(list((tmp_path / "to").iterdir())) == 1
    )


def test_processes_share_the_work(tmp_path):
    sources = [tmp_path / f"source-{number}" for number in range(6)]
    for source in sources:
        source.write_bytes(b"shard")
    log = tmp_path / "log"

    def write_once(source, file):
        with open(log, "a") as lines:
            lines.write(f"{source.name}\n")
        file.write(source.name.encode())

    def work():
        return [Unpacking(str(s), "all", 5, functools.partial(write_once, s)) for s in sources]

    processes = [forking.Process(target=unpacked, args=(work(), tmp_path / "to")) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert sorted(log.read_text().split()) == [source.name for source in sources]
    results = unpacked(work(), tmp_path / "to")
    assert [pathlib.Path(path).read_text() for path in results] == [
        source.name for source in sources
    ]

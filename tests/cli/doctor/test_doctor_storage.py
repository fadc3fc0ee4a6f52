"""What the doctor says of a folder: cold and warm reading, and what cannot be taken from cache."""

import errno
import os

import pytest

from fusionloader.cli.doctor import storage


@pytest.fixture
def folder(tmp_path):
    for number in range(30):
        (tmp_path / f"class{number % 3}").mkdir(exist_ok=True)
        (tmp_path / f"class{number % 3}" / f"{number:02}.jpg").write_bytes(b"x" * 1000)
    (tmp_path / "empty.jpg").touch()
    return tmp_path


@pytest.fixture(autouse=True)
def decoded(monkeypatch):
    monkeypatch.setattr(storage, "images_per_second", lambda: 1.0)


def nowait(answer):
    """What a read that must not wait comes to."""

    def preadv(handle, buffers, offset, flags):
        assert flags == os.RWF_NOWAIT
        if isinstance(answer, int):
            raise OSError(answer, os.strerror(answer))
        return 1

    return preadv


def test_cold_and_warm_files_are_read(folder, monkeypatch):
    monkeypatch.setattr(os, "preadv", nowait(errno.EAGAIN))
    cold, warm = storage.checks(folder)
    assert (cold.name, cold.state, warm.state) == ("storage, cold", "ok", "ok")
    for check in (cold, warm):
        assert "files/s" in check.value and "(30 files, " in check.value


def test_every_file_is_asked_to_leave_the_cache(folder, monkeypatch):
    asked = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *given: asked.append(given[1:]))
    monkeypatch.setattr(os, "preadv", nowait(errno.EAGAIN))
    next(storage.checks(folder))
    assert asked == [(0, 0, os.POSIX_FADV_DONTNEED)] * 30


def test_a_cache_that_stays_is_said_instead_of_a_figure(folder, monkeypatch):
    monkeypatch.setattr(os, "preadv", nowait("read"))
    cold, warm = storage.checks(folder)
    assert cold.state == "warn" and "30 of 30 files" in cold.value
    assert "cannot be dropped from the page cache" in cold.value
    assert "files/s" not in cold.value and "files/s" in warm.value


@pytest.mark.parametrize(("kind", "dropped"), [("nfs4", None), ("tmpfs", False)])
def test_where_it_cannot_be_seen_the_file_system_decides(folder, kind, dropped, monkeypatch):
    monkeypatch.setattr(os, "preadv", nowait(errno.EOPNOTSUPP))
    monkeypatch.setattr(storage, "file_system", lambda place: kind)
    assert storage.drop_from_cache(folder / "class0" / "00.jpg") is dropped
    cold = next(storage.checks(folder))
    assert ("whether the cache was dropped cannot be seen" in cold.value) == (dropped is None)


def test_storage_below_the_decoder_is_a_warning(folder, monkeypatch):
    monkeypatch.setattr(os, "preadv", nowait(errno.EAGAIN))
    monkeypatch.setattr(storage, "images_per_second", lambda: 1e12)
    cold = next(storage.checks(folder))
    assert cold.state == "warn" and "DecodedCache" in cold.remedy


def test_the_sample_is_bounded_and_even(folder, monkeypatch):
    monkeypatch.setattr(storage, "MOST_FILES", 10)
    chosen = storage.sample_of(folder)
    assert len(chosen) == 10 and len({path.parent for path in chosen}) == 3
    monkeypatch.setattr(storage, "MOST_BYTES", 3500)
    assert len(storage.sample_of(folder)) == 3


def test_reading_ends_in_time(folder, monkeypatch):
    monkeypatch.setattr(storage, "MOST_SECONDS", -1.0)
    assert storage.read(storage.sample_of(folder), "reading").files == 1


def test_a_folder_without_files_is_told(tmp_path):
    (check,) = storage.checks(tmp_path)
    assert check.state == "warn" and "no files that can be read" in check.value


def test_the_file_system_is_that_of_the_nearest_mount():
    assert storage.file_system(storage.Path("/proc/self")) == "proc"
    assert storage.file_system(storage.Path("/dev/shm")) == "tmpfs"

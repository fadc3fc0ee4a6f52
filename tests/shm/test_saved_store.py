"""A saved index is read back as it was, or not at all."""

import numpy as np
import pytest

from fusionloader import _native
from fusionloader.cache.tiers import saved_store
from fusionloader.cache.tiers.file_store import FileStore
from fusionloader.cache.tiers.saved_store import SavedStoreMismatch, fingerprint

FILES = [b"/data/a/0.jpg", b"/data/a/1.jpg", b"/data/b/0.jpg"]
STAMPS = {0: (200, 8), 2: (100, 7)}


def filled():
    store = FileStore(3, 4096)
    here = _native.FileStoreView(store.fd, store.nbytes)
    assert here.put(2, 100, 7, 1, 2, b"two") and here.put(0, 200, 8, 0, 0, b"")
    return store


def found(store, item, nbytes, mtime_ns):
    kept = _native.FileStoreView(store.fd, store.nbytes).find(item, nbytes, mtime_ns)
    return kept and (kept.data, kept.width, kept.height)


def kept(store):
    return [found(store, 0, 200, 8), found(store, 1, 1, 1), found(store, 2, 100, 7)]


def test_what_was_saved_is_read_back(tmp_path):
    store, path = filled(), tmp_path / "index"
    saved_store.save(store, path, fingerprint(FILES))
    other = FileStore(3, 2048)
    saved_store.load(other, path, fingerprint(FILES), STAMPS.__getitem__)
    assert kept(other) == kept(store) == [(b"", 0, 0), None, (b"two", 1, 2)]
    assert (other.kept, other.used) == (2, store.used)
    here = _native.FileStoreView(other.fd, other.nbytes)
    assert here.put(1, 1, 1, 0, 0, b"one") and found(other, 2, 100, 7) == (b"two", 1, 2)
    assert [file.name for file in tmp_path.iterdir()] == ["index"]


def test_what_is_being_filled_is_not_saved(tmp_path):
    store, path = filled(), tmp_path / "index"
    memory = memoryview(_native.SharedMapping(store.fd, 0, store.nbytes))
    np.frombuffer(memory, np.uint64, 1, 128 + 64 * 1)[:] = 2  # of some process
    saved_store.save(store, path, fingerprint(FILES))
    other = FileStore(3, 2048)
    saved_store.load(other, path, fingerprint(FILES), STAMPS.__getitem__)
    assert _native.FileStoreView(other.fd, other.nbytes).lacks(1, 1)


def test_a_folder_may_move_and_nothing_else():
    moved = [path.replace(b"/data", b"/mnt/data") for path in FILES]
    assert fingerprint(moved) == fingerprint(FILES)
    assert fingerprint(FILES[:2]) != fingerprint(FILES)
    assert fingerprint(FILES[::-1]) != fingerprint(FILES)
    assert fingerprint([b"/data/a.jpg"]) != fingerprint([b"/data/b.jpg"])


def test_every_damaged_byte_is_noticed(tmp_path):
    path = tmp_path / "index"
    saved_store.save(filled(), path, fingerprint(FILES))
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        store = FileStore(3, 4096)
        with pytest.raises(SavedStoreMismatch):
            saved_store.load(store, path, fingerprint(FILES), STAMPS.__getitem__)
        assert store.kept == 0
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(SavedStoreMismatch):
            saved_store.load(FileStore(3, 4096), path, fingerprint(FILES), STAMPS.__getitem__)


def test_most_files_have_to_be_unchanged(tmp_path):
    path = tmp_path / "index"
    saved_store.save(filled(), path, fingerprint(FILES))
    with pytest.raises(SavedStoreMismatch, match="2 of 2 files looked at have changed since"):
        saved_store.load(FileStore(3, 4096), path, fingerprint(FILES), lambda item: (100, 8))
    store = FileStore(3, 4096)
    saved_store.load(store, path, fingerprint(FILES), lambda item: (100, 7))
    assert store.kept == 2


def test_it_has_to_fit(tmp_path):
    path = tmp_path / "index"
    saved_store.save(filled(), path, fingerprint(FILES))
    with pytest.raises(SavedStoreMismatch, match="there is room for 0"):
        saved_store.load(
            FileStore(3, 128 + 64 * 3 + 63), path, fingerprint(FILES), STAMPS.__getitem__
        )


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    with pytest.raises(OSError):
        saved_store.save(filled(), tmp_path / "missing" / "index", fingerprint(FILES))
    (tmp_path / "index").mkdir()
    with pytest.raises(OSError):
        saved_store.save(filled(), tmp_path / "index", fingerprint(FILES))
    assert [file.name for file in tmp_path.iterdir()] == ["index"]

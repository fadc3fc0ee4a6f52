"""The folder of the holder's socket: whose it is, and who may enter."""

import os
import stat
import tempfile

import pytest

from fusionloader.cache.runtime_folder import (
    RuntimeFolderError,
    open_runtime_folder,
    runtime_folder,
)

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path / f"fusionloader-{os.geteuid()}"


def test_it_is_in_the_users_runtime_directory(tmp_path):
    assert runtime_folder({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "fusionloader"


@pytest.mark.parametrize("given", [{}, {"XDG_RUNTIME_DIR": ""}, {"XDG_RUNTIME_DIR": "run"}])
def test_without_one_it_is_in_the_temporary_folder(temporary, given):
    assert runtime_folder(given) == temporary


def test_a_runtime_directory_of_another_machine_is_not_used(temporary, tmp_path):
    assert runtime_folder({"XDG_RUNTIME_DIR": str(tmp_path / "missing")}) == temporary


@as_root
def test_a_runtime_directory_of_another_user_is_not_used(temporary, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    os.chown(other, 65534, 65534)
    assert runtime_folder({"XDG_RUNTIME_DIR": str(other)}) == temporary


def test_it_is_made_for_this_user_alone_and_opened_again(tmp_path):
    folder = tmp_path / "fusionloader"
    for _ in range(2):
        fd = open_runtime_folder(folder)
        assert os.fstat(fd).st_ino == folder.stat().st_ino
        os.close(fd)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def refused(folder, message):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RuntimeFolderError, match=message):
        open_runtime_folder(folder)
    assert len(os.listdir("/proc/self/fd")) == before


def test_one_that_others_may_enter_is_refused_with_its_mode(tmp_path):
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o755)
    refused(folder, r"mode 0755\): chmod 700")


def test_a_symbolic_link_is_refused(tmp_path):
    (tmp_path / "target").mkdir(0o700)
    (tmp_path / "link").symlink_to("target")
    refused(tmp_path / "link", "link is no folder that can be used: a symbolic link")


def test_a_file_in_its_place_is_refused(tmp_path):
    (tmp_path / "file").touch()
    refused(tmp_path / "file", "File exists")


def test_a_folder_that_cannot_be_made_is_refused_with_the_reason(tmp_path):
    refused(tmp_path / "missing" / "fusionloader", "No such file or directory.*XDG_RUNTIME_DIR")


@as_root
def test_a_folder_of_another_user_is_refused_with_its_number(tmp_path):
    folder = tmp_path / "foreign"
    folder.mkdir(0o700)
    os.chown(folder, 65534, 65534)
    refused(folder, f"belongs to user 65534, not to {os.geteuid()}")

"""Which nvJPEG decodes, by the installed libraries and by ones that are compiled here."""

import ctypes
import subprocess
from pathlib import Path

import pytest

from fusionloader.transforms.executors import nvidia_packages, nvjpeg

nvimgcodec = pytest.importorskip("nvidia.nvimgcodec")


@pytest.fixture(autouse=True)
def _asked_anew():
    nvjpeg.version.cache_clear()
    yield
    nvjpeg.version.cache_clear()


@pytest.fixture
def name(monkeypatch):
    """Of a library that no other test loads."""
    name = "libnvjpeg.so.99"
    monkeypatch.setattr(nvjpeg, "file_name", lambda: name)
    return name


def compiled(folder, name, minor):
    folder.mkdir()
    source = "int nvjpegGetProperty(int what, int *value) { *value = what ? %d : 13; return 0; }"
    (folder / "nvjpeg.c").write_text(source % minor)
    command = ["gcc", "-shared", f"-Wl,-soname,{name}", "nvjpeg.c", "-o", name]
    subprocess.run(command, cwd=folder, check=True)
    return folder / name


def test_nvimagecodec_asks_for_the_name_that_is_looked_for():
    (extension,) = Path(nvimgcodec.__file__).parent.glob("extensions/libnvjpeg_ext.so.*")
    assert nvjpeg.file_name().encode() in extension.read_bytes()


@pytest.mark.skipif(not list(nvjpeg.files(nvjpeg.file_name())), reason="nvJPEG is not installed")
def test_the_installed_one_is_found_and_tells_its_version():
    found = nvjpeg.version()
    assert found is not None and found[0] == nvimgcodec.__cuda_version__ // 1000


def test_the_one_that_is_loaded_already_is_the_one_that_decodes(tmp_path, monkeypatch, name):
    """As torchvision's: whoever asks for a name gets the first library of that name."""
    loaded = ctypes.CDLL(str(compiled(tmp_path / "torchvision", name, minor=0)))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(compiled(tmp_path / "later", name, minor=3).parent))
    assert loaded and next(nvjpeg.files(name)).parent.name == "later"
    assert nvjpeg.version() == (13, 0)


def test_the_library_path_takes_precedence_and_what_cannot_be_loaded_has_no_version(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(nvjpeg, "file_name", lambda: "libnvjpeg.so.98")
    (tmp_path / "libnvjpeg.so.98").write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path}")
    assert next(nvjpeg.files()) == tmp_path / "libnvjpeg.so.98"
    assert nvjpeg.version() is None


def test_without_one_there_is_no_version(monkeypatch):
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(nvidia_packages, "folders", list)
    monkeypatch.setattr(nvjpeg, "file_name", lambda: "libnvjpeg.so.0")
    assert nvjpeg.version() is None

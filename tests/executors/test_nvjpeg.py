"""Which nvJPEG decodes, and what its version means, by the installed libraries."""

from pathlib import Path

import pytest

from fusionloader.transforms.executors import nvidia_packages, nvjpeg

nvimgcodec = pytest.importorskip("nvidia.nvimgcodec")


@pytest.fixture(autouse=True)
def _asked_anew():
    nvjpeg.version.cache_clear()
    yield
    nvjpeg.version.cache_clear()


def test_windows_are_decoded_from_the_version_on_that_nvimagecodec_names():
    (extension,) = Path(nvimgcodec.__file__).parent.glob("extensions/libnvjpeg_ext.so.*")
    least = ".".join(map(str, nvjpeg.WINDOWS_SINCE))
    assert (
        f"may produce wrong results on image edge (1 pixel wide) with nvJPEG < {least}".encode()
        in (extension.read_bytes())
    )
    assert nvjpeg.file_name().encode() in extension.read_bytes()


@pytest.mark.skipif(not list(nvjpeg.files(nvjpeg.file_name())), reason="nvJPEG is not installed")
def test_the_installed_one_is_found_and_tells_its_version():
    found = nvjpeg.version()
    assert found is not None and found[0] == nvimgcodec.__cuda_version__ // 1000
    assert nvjpeg.decodes_windows() == (found >= nvjpeg.WINDOWS_SINCE)


def test_the_library_path_takes_precedence_and_what_cannot_be_loaded_has_no_version(
    tmp_path, monkeypatch
):
    (tmp_path / nvjpeg.file_name()).write_text("no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path}")
    assert next(nvjpeg.files()) == tmp_path / nvjpeg.file_name()
    assert nvjpeg.version() is None and not nvjpeg.decodes_windows()


def test_without_one_there_is_no_version(monkeypatch):
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(nvidia_packages, "folders", list)
    monkeypatch.setattr(nvjpeg, "file_name", lambda: "libnvjpeg.so.0")
    assert nvjpeg.version() is None

"""What the doctor asks nvJPEG, here a stand-in: how many JPEG engines the device has."""

import re
from pathlib import Path

import pytest
from support.fake_cuda import compile_library

from fusionloader.cli.doctor import jpeg_engine
from fusionloader.cli.doctor.jpeg_engine import NvjpegError
from fusionloader.transforms.executors import nvidia_packages

SOURCE = """
#include <cstdlib>
#define EXPORT extern "C" __attribute__((visibility("default")))
static int setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? 0 : std::atoi(value);
}
static int handles = 0;
EXPORT int nvjpegCreateSimple(void** handle) {
  *handle = &handles;
  ++handles;
  return setting("FAKE_NVJPEG_CREATE");
}
EXPORT int nvjpegGetHardwareDecoderInfo(void* handle, unsigned* engines, unsigned* cores) {
  if (handle != &handles || handles != 1) return 2;
  *engines = static_cast<unsigned>(setting("FAKE_NVJPEG_ENGINES"));
  *cores = 5;
  return setting("FAKE_NVJPEG_INFO");
}
EXPORT int nvjpegDestroy(void*) {
  --handles;
  return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nvjpeg")
    (folder / "nvjpeg.cpp").write_text(SOURCE)
    return compile_library([folder / "nvjpeg.cpp"], folder / "libnvjpeg.so.13")


@pytest.fixture
def check(library, monkeypatch):
    def checked(**settings):
        for name, value in settings.items():
            monkeypatch.setenv(f"FAKE_NVJPEG_{name}", str(value))
        monkeypatch.setattr(jpeg_engine, "device_count", lambda: 1)
        monkeypatch.setattr(jpeg_engine, "find_library", lambda: library)
        (found,) = jpeg_engine.checks()
        return found

    return checked


@pytest.mark.parametrize(
    ("settings", "state", "value"),
    [
        ({"ENGINES": 7}, "ok", "7, 5 cores each.*"),
        ({"ENGINES": 0}, "ok", "none"),
        ({"INFO": 7}, "ok", "none"),
        ({"INFO": 6}, "warn", r".*nvjpegGetHardwareDecoderInfo failed \(6\).*"),
    ],
)
def test_engines_are_counted_and_a_refusal_is_a_warning(check, settings, state, value):
    found = check(**settings)
    assert found.state == state and re.fullmatch(value, found.value, re.DOTALL)


def test_the_numbers_and_names_are_those_of_nvjpeg_s_header():
    files = [path for at in nvidia_packages.folders() for path in at.glob("*/include/nvjpeg.h")]
    if not files:
        pytest.skip("nvJPEG's header is not installed")
    header = files[0].read_text()
    assert re.search(r"NVJPEG_STATUS_ARCH_MISMATCH += 7,", header)
    asked = (
        r"nvjpegGetHardwareDecoderInfo\(nvjpegHandle_t \w+,\s+unsigned int\* \w+,\s+unsigned int\*"
    )
    assert re.search(asked, header)


def test_a_library_that_cannot_be_opened_is_told(library, monkeypatch):
    monkeypatch.setenv("FAKE_NVJPEG_CREATE", "3")
    with pytest.raises(NvjpegError, match=r"nvjpegCreateSimple failed \(3\)"):
        jpeg_engine.engines(library)


def test_what_is_no_nvjpeg_is_told(tmp_path):
    (tmp_path / "libnvjpeg.so.13").write_text("nothing")
    with pytest.raises(NvjpegError, match="libnvjpeg.so.13 does not do"):
        jpeg_engine.engines(tmp_path / "libnvjpeg.so.13")


def test_without_the_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(jpeg_engine, "device_count", lambda: 1)
    monkeypatch.setattr(jpeg_engine.nvjpeg, "files", list)
    monkeypatch.setattr(jpeg_engine.importlib.util, "find_spec", lambda name: None)
    (found,) = jpeg_engine.checks()
    assert (found.state, found.remedy) == ("warn", "pip install nvidia-nvjpeg")


def test_the_library_is_nvidia_s_or_torchvision_s(tmp_path, monkeypatch):
    for name in ("nvidia/cu13/lib/libnvjpeg.so.13", "torchvision.libs/libnvjpeg.1234.so.13"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(nvidia_packages, "folders", lambda: [tmp_path / "nvidia"])
    assert jpeg_engine.find_library() == tmp_path / "nvidia/cu13/lib/libnvjpeg.so.13"
    monkeypatch.setattr(nvidia_packages, "folders", list)
    assert isinstance(jpeg_engine.find_library(), Path)

"""What the doctor says of compilers for a device."""

import importlib

import pytest

from fusionloader.cli.doctor import kernels
from fusionloader.transforms.executors.device import nvrtc


@pytest.mark.parametrize(("devices", "state"), [(0, "ok"), (1, "warn")])
def test_without_a_compiler_it_says_what_to_install(devices, state, monkeypatch):
    monkeypatch.setattr(nvrtc, "find_library", lambda: None)
    monkeypatch.setattr(kernels, "device_count", lambda: devices)
    check = kernels.compiler()
    assert "libnvrtc) is missing: pip install nvidia-cuda-nvrtc" in check.value
    assert check.state == state
    assert check.remedy.startswith("pip install") == (state == "warn")


@pytest.mark.skipif(nvrtc.find_library() is None, reason="NVRTC is not installed")
def test_a_compiler_is_tried_for_the_device_that_is_there(fake_library, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_ARCHITECTURE", "80")
    check = kernels.compiler()
    assert check.state == "ok" and check.value.endswith("compiles for sm_80")


def test_a_device_that_is_too_old_is_a_warning(fake_library, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_ARCHITECTURE", "30")
    check = kernels.compiler()
    assert check.state == "warn" and "not for this device (sm_30)" in check.value


def test_a_dali_that_does_not_load_is_a_warning(monkeypatch):
    def broken(name):
        raise ImportError("libdali.so: cannot open")

    monkeypatch.setattr(kernels, "installed_dali", lambda: ("nvidia-dali-cuda130", "2.4.0"))
    monkeypatch.setattr(importlib, "import_module", broken)
    check = kernels.dali()
    assert check.state == "warn" and "libdali.so: cannot open" in check.value
    assert check.remedy == "pip install --force-reinstall nvidia-dali-cuda130"


def test_without_dali_nothing_is_wrong(monkeypatch):
    monkeypatch.setattr(kernels, "installed_dali", lambda: None)
    assert (kernels.dali().state, kernels.dali_memory().state) == ("ok", "ok")

"""What the doctor says of CUDA devices: of none, of hidden ones, of those that torch lacks."""

import pytest
import torch

from fusionloader.cli.doctor import device_memory, devices, jpeg_engine
from fusionloader.system.gpu_memory.errors import UnavailableError


@pytest.fixture
def no_device(monkeypatch):
    def missing():
        raise UnavailableError("no CUDA driver on this machine")

    monkeypatch.setattr(devices, "_count", missing)


@pytest.mark.usefixtures("no_device")
def test_where_there_is_no_gpu_nothing_is_wrong(monkeypatch, tmp_path):
    monkeypatch.setattr(devices, "_NODES", tmp_path)
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    found = [*devices.checks(), *device_memory.checks(), *jpeg_engine.checks()]
    assert {check.state for check in found} == {"ok"}
    assert found[0].value == "none"


@pytest.mark.usefixtures("no_device")
@pytest.mark.parametrize("hidden", [None, ""])
def test_a_gpu_that_cannot_be_used_is_a_warning(hidden, monkeypatch, tmp_path):
    (tmp_path / "nvidia0").touch()
    monkeypatch.setattr(devices, "_NODES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    check = devices.devices()
    assert check.state == "warn" and "no CUDA driver" in check.value
    assert ("CUDA_VISIBLE_DEVICES is" in check.value) == (hidden is not None)
    assert "docker run --gpus all" in check.remedy


def test_devices_are_counted_with_their_architecture(fake_library, monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "ab")
    monkeypatch.setenv("FAKE_CUDA_ARCHITECTURE", "90")
    assert devices.devices().value.startswith("2 (sm_90)")


@pytest.mark.parametrize("version", ["13.2", None])
def test_a_torch_that_does_not_see_the_device_is_a_warning(fake_library, version, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check = devices.of_torch()
    assert check.state == "warn" and "torch" in check.remedy
    assert check.value.startswith("13.2 does not work: " if version else "torch is built without")

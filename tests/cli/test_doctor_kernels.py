"""The doctor's report about what compiles kernels."""

from fusionloader.cli.doctor import facts
from fusionloader.executors.device import nvrtc


def test_without_a_compiler_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(nvrtc, "find_library", lambda: None)
    assert "libnvrtc) is missing: pip install nvidia-cuda-nvrtc" in facts()["CUDA kernels"]

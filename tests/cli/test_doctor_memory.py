"""The doctor's report about sharing GPU memory."""

import os
import subprocess
import sys

import pytest

from fusionloader.cli.environment import memory_sharing


def test_without_a_driver_it_says_so():
    code = "from fusionloader.cli.environment import memory_sharing; print(memory_sharing())"
    environment = {**os.environ, "FUSIONLOADER_LIBCUDA": "/nowhere/libcuda.so"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.startswith("no: no CUDA driver on this machine: /nowhere/libcuda.so")


@pytest.mark.usefixtures("fake_library")
@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        ("", "possible"),
        ("max_split_size_mb:512", "possible"),
        ("max_split_size_mb:512,expandable_segments:True", "no: PYTORCH_CUDA_ALLOC_CONF asks for"),
        ("backend:cudaMallocAsync", "no: PYTORCH_CUDA_ALLOC_CONF asks for another allocator"),
    ],
)
def test_with_one_it_looks_at_torch_s_settings(configuration, said, monkeypatch):
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", configuration)
    assert memory_sharing().startswith(said)


@pytest.mark.usefixtures("fake_library")
def test_mps_is_mentioned(tmp_path, monkeypatch):
    (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert "MPS" in memory_sharing()

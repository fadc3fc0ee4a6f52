"""What the doctor says of page-locking and of sharing GPU memory, on a fake device."""

import pytest

from fusionloader.cli.doctor import device_memory


@pytest.mark.usefixtures("fake_library")
def test_memory_is_locked_and_shared_to_find_out():
    states = {check.name: (check.state, check.value) for check in device_memory.checks()}
    assert states["page-locking"] == ("ok", "works")
    assert states["CUDA IPC"][0] == "ok" and states["CUDA IPC"][1].startswith("works")


@pytest.mark.usefixtures("fake_library")
def test_page_locking_that_fails_is_a_warning(monkeypatch):
    monkeypatch.setenv("FAKE_CUDA_NO_LOCKING", "1")
    check = device_memory.page_locking()
    assert check.state == "warn" and "CUDA_ERROR_OUT_OF_MEMORY" in check.value
    assert "memlock" in check.remedy


@pytest.mark.usefixtures("fake_library")
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("FAKE_CUDA_NO_IPC", "cuIpcOpenMemHandle failed: CUDA_ERROR_INVALID_CONTEXT"),
        ("FAKE_CUDA_DIES_OPENING", "the other process has died"),
    ],
)
def test_memory_that_cannot_be_shared_is_told_in_words_of_the_other_process(
    setting, said, monkeypatch
):
    monkeypatch.setenv(setting, "1")
    check = device_memory.sharing()
    assert check.state == "warn" and said in check.value
    assert "MIG" in check.remedy


@pytest.mark.usefixtures("fake_library")
def test_mps_is_mentioned(tmp_path, monkeypatch):
    (tmp_path / "control").touch()
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    monkeypatch.setattr(device_memory, "try_sharing", lambda: None)
    assert "MPS" in device_memory.sharing().value


@pytest.mark.parametrize("variable", ["PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"])
@pytest.mark.parametrize(
    ("configuration", "said", "remedy"),
    [
        ("", "off", ""),
        ("max_split_size_mb:512", "off", ""),
        (
            "max_split_size_mb:512, expandable_segments:True",
            "asked for by {}: memory of training cannot be lent",
            "take expandable_segments:True out of {}",
        ),
        (
            "backend:cudaMallocAsync",
            "{} asks for another allocator",
            "take backend:cudaMallocAsync out of {}",
        ),
    ],
)
def test_it_looks_at_torch_s_settings(variable, configuration, said, remedy, monkeypatch):
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, configuration)
    check = device_memory.segments()
    assert check.value.startswith(said.format(variable))
    assert check.remedy == remedy.format(variable)
    assert check.state == ("warn" if remedy else "ok")

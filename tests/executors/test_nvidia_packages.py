"""NVIDIA's packages where they are in several folders, as DALI's and torch's may be."""

from __future__ import annotations

import importlib
import sys

import pytest

from fusionloader.transforms.executors.dali.memory import resource_library
from fusionloader.transforms.executors.device import nvrtc


@pytest.fixture
def two_folders(tmp_path, monkeypatch):
    """DALI in the first folder, with a package that finds the rest; torch's CUDA in the second."""
    dali, cuda = tmp_path / "dali" / "nvidia", tmp_path / "torch" / "nvidia"
    (dali / "dali").mkdir(parents=True)
    (dali / "__init__.py").write_text(
        "from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n"
    )
    (cuda / "cu13" / "lib").mkdir(parents=True)
    (cuda / "cu13" / "include").mkdir(parents=True)
    for name in [name for name in sys.modules if name.split(".")[0] == "nvidia"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [str(dali.parent), str(cuda.parent), *sys.path])
    importlib.invalidate_caches()
    yield cuda / "cu13"
    sys.modules.pop("nvidia", None)


def test_the_compiler_is_found_beside_torch_though_dali_is_elsewhere(two_folders):
    library = two_folders / "lib" / "libnvrtc.so.13"
    library.write_bytes(b"")
    assert nvrtc.find_library() == str(library)


def test_cudas_headers_are_found_beside_torch_though_dali_is_elsewhere(two_folders, monkeypatch):
    monkeypatch.setattr(resource_library, "_CUDA_HEADERS", ("only_here.h",))
    (two_folders / "include" / "only_here.h").write_text("")
    assert resource_library._cuda_headers() == two_folders / "include"


def test_without_any_the_toolkit_is_left(monkeypatch):
    monkeypatch.setitem(sys.modules, "nvidia", None)
    monkeypatch.setenv("CUDA_HOME", "/somewhere")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    assert [str(folder) for folder in nvrtc.folders()][1:] == [
        "/somewhere/lib64",
        "/usr/local/cuda/lib64",
    ]

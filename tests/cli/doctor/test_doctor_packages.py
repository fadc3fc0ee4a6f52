"""What the doctor says of what is installed."""

import importlib
import importlib.metadata

import pytest
from PIL import features

from fusionloader.cli.doctor import packages
from fusionloader.cli.doctor.check import Check


def found(name):
    (check,) = [check for check in packages.checks() if check.name == name]
    return check


def test_a_missing_package_fails_with_the_command_that_installs_it(monkeypatch):
    version = importlib.metadata.version

    def without(name):
        if name == "tqdm":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without)
    assert found("tqdm") == Check("tqdm", "missing", "fail", "pip install tqdm")


def test_an_extension_that_does_not_load_fails(monkeypatch):
    def broken(name):
        raise ImportError(f"{name}: undefined symbol")

    monkeypatch.setattr(importlib, "import_module", broken)
    check = packages.native_extension()
    assert check.state == "fail" and "undefined symbol" in check.value


@pytest.mark.parametrize(("turbo", "state"), [(True, "ok"), (False, "warn")])
def test_a_slow_jpeg_library_is_a_warning(turbo, state, monkeypatch):
    monkeypatch.setattr(features, "check_feature", lambda name: turbo)
    assert found("Pillow's JPEG library").state == state

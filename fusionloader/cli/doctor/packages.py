"""What is installed, and whether it works."""

from __future__ import annotations

import importlib
import multiprocessing
from collections.abc import Iterator

from fusionloader.cli.doctor.check import Check, warn_if
from fusionloader.cli.environment import source, versions


def checks() -> Iterator[Check]:
    """Yields versions, and what has to load."""
    for name, version in versions().items():
        if version == "missing":
            yield Check(name, version, "fail", f"pip install {name}")
        else:
            yield Check(name, version)
    if code := source():
        yield Check("commit", code["commit"] + " with changes" * code["uncommitted"])
    yield native_extension()
    yield pillow_jpeg()
    yield Check("start method", start_method())


def native_extension() -> Check:
    """Whether the package's own native code loads."""
    try:
        importlib.import_module("fusionloader._native")
    except ImportError as error:
        return Check(
            "native extension", f"does not load ({error})", "fail", "build it: pip install -e ."
        )
    return Check("native extension", "works")


def pillow_jpeg() -> Check:
    """Which JPEG library Pillow was built with."""
    name = "Pillow's JPEG library"
    try:
        from PIL import features
    except ImportError:
        return Check(name, "none", "fail", "pip install pillow")
    turbo = bool(features.check_feature("libjpeg_turbo"))
    found = f"libjpeg-turbo {features.version_feature('libjpeg_turbo')}"
    return warn_if(
        not turbo,
        name,
        found if turbo else f"libjpeg {features.version_codec('jpg')}, without libjpeg-turbo: slow",
        "pip install --force-reinstall --only-binary=:all: pillow",
    )


def start_method() -> str:
    """How worker processes start, unless a loader is told otherwise."""
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or f"{multiprocessing.get_all_start_methods()[0]} (the default)"

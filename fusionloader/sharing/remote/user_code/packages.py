"""Packages that user code makes samples with: other versions may make other samples."""

from __future__ import annotations

import platform
from importlib import metadata

_COMPARED = ("torch", "torchvision", "numpy", "pillow")


def installed() -> dict[str, str]:
    """Returns the versions of Python and of those packages that are installed here."""
    found = {"python": platform.python_version()}
    for name in _COMPARED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def difference(wanted: dict[str, str]) -> str | None:
    """Returns what is installed here in another version than is wanted, ``None`` if nothing is."""
    here = installed()
    for name, version in wanted.items():
        if here.get(name) != version:
            found = f"has {name} {here[name]}" if name in here else f"has no {name}"
            return f"{found}, and training has {name} {version[:40]}"
    return None

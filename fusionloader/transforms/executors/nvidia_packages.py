"""Folders of NVIDIA's packages: CUDA, which torch's wheels bring, and DALI."""

from __future__ import annotations

import importlib
from pathlib import Path


def folders() -> list[Path]:
    """Returns the folders of the package ``nvidia``, in the order of imports.

    The package is imported, since DALI's finds further folders by code: its spec lacks them.
    """
    try:
        return [Path(folder) for folder in importlib.import_module("nvidia").__path__]
    except ImportError:
        return []

"""Where the packages of NVIDIA are: of CUDA, which torch's wheels bring, and of DALI."""

from __future__ import annotations

import importlib
from pathlib import Path


def folders() -> list[Path]:
    """Returns the folders of the package ``nvidia``, in the order of imports.

    It is imported: with DALI it has code that finds the others, which its spec does not name.
    """
    try:
        return [Path(folder) for folder in importlib.import_module("nvidia").__path__]
    except ImportError:
        return []

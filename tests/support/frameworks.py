"""Frameworks that take seconds to import, which collecting the tests need not do."""

from __future__ import annotations

from typing import Any

import pytest


class Lazy:
    """A module that is imported with its first attribute; a test is skipped where it is missing."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_"):  # pytest asks for some while it collects
            raise AttributeError(attribute)
        module = pytest.importorskip(self._name, reason=f"pip install {self._name}")
        return getattr(module, attribute)

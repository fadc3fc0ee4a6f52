"""Whether Ray is there."""

from __future__ import annotations

import importlib.util


def need_ray() -> None:
    """Raises ``ImportError`` with what to do if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ImportError("workers on other machines need Ray: pip install fusionloader[remote]")

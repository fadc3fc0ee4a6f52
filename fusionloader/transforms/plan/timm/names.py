"""Names of timm, where the program has imported it: the compiler never imports it."""

from __future__ import annotations

import sys
from typing import Any


def timm_name(module: str, name: str) -> Any:
    """Returns ``timm.data.<module>.<name>``, or a class of which there is no instance."""
    return getattr(sys.modules.get(f"timm.data.{module}"), name, _Missing)


class _Missing:
    """What timm does not have, or has not been imported for."""

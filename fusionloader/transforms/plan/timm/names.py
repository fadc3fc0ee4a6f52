"""Names of timm, which the compiler never imports: the program may have."""

from __future__ import annotations

import sys
from typing import Any


def timm_name(module: str, name: str) -> Any:
    """Returns ``timm.data.<module>.<name>``; if timm is not imported, a class without instances."""
    return getattr(sys.modules.get(f"timm.data.{module}"), name, _Missing)


class _Missing:
    """Stands for a name that timm does not have, or that was not imported."""

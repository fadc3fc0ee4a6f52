"""What to do to a sample, as data: ``compile(transform)`` shows what a loader makes of it.

The names are loaded on first use, so that worker processes can import their part of the package
without importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusionloader.executors.compiled_plan import CompiledPlan as CompiledPlan
    from fusionloader.executors.compiled_plan import compile as compile

__all__ = ["CompiledPlan", "compile"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from fusionloader.executors import compiled_plan

        return getattr(compiled_plan, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""A faster torch.utils.data.DataLoader: same arguments, same batches.

The names are loaded on first use, so that worker processes can import their part of the package
without importing torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusionloader.loader import FusionLoader as FusionLoader
    from fusionloader.options import DecodedCache as DecodedCache
    from fusionloader.options import GpuWorker as GpuWorker
    from fusionloader.options import WorkerPool as WorkerPool

__version__ = "0.1.0"
__all__ = ["DecodedCache", "FusionLoader", "GpuWorker", "WorkerPool"]


def __getattr__(name: str) -> Any:
    if name == "FusionLoader":
        from fusionloader.loader import FusionLoader

        return FusionLoader
    if name in ("DecodedCache", "GpuWorker", "WorkerPool"):
        from fusionloader import options

        return getattr(options, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

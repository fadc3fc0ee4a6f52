"""A faster torch.utils.data.DataLoader: same arguments, same batches.

The names are loaded on first use, so that worker processes can import their part of the package
without importing torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fusionloader.cache_settings import Cache as Cache
    from fusionloader.cache_settings import DecodedCache as DecodedCache
    from fusionloader.executors.compiled_plan import CompiledPlan as CompiledPlan
    from fusionloader.executors.compiled_plan import compile_plan as compile_plan
    from fusionloader.executors.decoders.interface import DecodeCommand as DecodeCommand
    from fusionloader.executors.decoders.interface import Decoded as Decoded
    from fusionloader.executors.decoders.interface import Decoder as Decoder
    from fusionloader.executors.refusals import FileRefused as FileRefused
    from fusionloader.gpu_settings import GpuWorker as GpuWorker
    from fusionloader.loader import FusionLoader as FusionLoader
    from fusionloader.options import WorkerPool as WorkerPool
    from fusionloader.remote_settings import Remote as Remote
    from fusionloader.statistics.snapshot import LoaderStats as LoaderStats

try:
    from fusionloader._version import __version__ as __version__
except ImportError:  # a tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "Cache",
    "CompiledPlan",
    "DecodeCommand",
    "Decoded",
    "DecodedCache",
    "Decoder",
    "FileRefused",
    "FusionLoader",
    "GpuWorker",
    "LoaderStats",
    "Remote",
    "WorkerPool",
    "compile_plan",
]
_MODULES = {
    "Cache": "cache_settings",
    "CompiledPlan": "executors.compiled_plan",
    "DecodeCommand": "executors.decoders.interface",
    "Decoded": "executors.decoders.interface",
    "DecodedCache": "cache_settings",
    "Decoder": "executors.decoders.interface",
    "FileRefused": "executors.refusals",
    "FusionLoader": "loader",
    "GpuWorker": "gpu_settings",
    "LoaderStats": "statistics.snapshot",
    "Remote": "remote_settings",
    "WorkerPool": "options",
    "compile_plan": "executors.compiled_plan",
}


if not TYPE_CHECKING:  # to checkers every name would be there

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return getattr(importlib.import_module(f"fusionloader.{_MODULES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

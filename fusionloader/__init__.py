"""A faster torch.utils.data.DataLoader: same arguments, same batches.

Here are the loader and its options, compiled plans, and the interface of decoders for a GPU worker.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Names are loaded on first use, so that worker processes can import their part of the package
# without importing torch.
if TYPE_CHECKING:
    from fusionloader.loader import FusionLoader as FusionLoader
    from fusionloader.observe.statistics.snapshot import LoaderStats as LoaderStats
    from fusionloader.options.cache_settings import Cache as Cache
    from fusionloader.options.cache_settings import DecodedCache as DecodedCache
    from fusionloader.options.gpu_settings import GpuWorker as GpuWorker
    from fusionloader.options.loader_options import WorkerPool as WorkerPool
    from fusionloader.options.remote_settings import Remote as Remote
    from fusionloader.transforms.executors.compiled_plan import CompiledPlan as CompiledPlan
    from fusionloader.transforms.executors.compiled_plan import compile_plan as compile_plan
    from fusionloader.transforms.executors.decoders.interface import DecodeCommand as DecodeCommand
    from fusionloader.transforms.executors.decoders.interface import Decoded as Decoded
    from fusionloader.transforms.executors.decoders.interface import Decoder as Decoder
    from fusionloader.transforms.executors.device_errors import FileRefused as FileRefused

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
    "Cache": "options.cache_settings",
    "CompiledPlan": "transforms.executors.compiled_plan",
    "DecodeCommand": "transforms.executors.decoders.interface",
    "Decoded": "transforms.executors.decoders.interface",
    "DecodedCache": "options.cache_settings",
    "Decoder": "transforms.executors.decoders.interface",
    "FileRefused": "transforms.executors.device_errors",
    "FusionLoader": "loader",
    "GpuWorker": "options.gpu_settings",
    "LoaderStats": "observe.statistics.snapshot",
    "Remote": "options.remote_settings",
    "WorkerPool": "options.loader_options",
    "compile_plan": "transforms.executors.compiled_plan",
}


if not TYPE_CHECKING:  # a type checker would take any name for defined

    def __getattr__(name: str) -> Any:
        if name in _MODULES:
            return getattr(importlib.import_module(f"fusionloader.{_MODULES[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])

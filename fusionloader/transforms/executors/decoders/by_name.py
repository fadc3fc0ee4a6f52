"""The decoders that come with FusionLoader, by their names: what they need, and how to get it."""

from __future__ import annotations

import importlib.util
import pickle

from fusionloader.options.gpu_settings import GpuWorker
from fusionloader.transforms.executors import nvjpeg
from fusionloader.transforms.executors.decoders.head_steps import FILTERS
from fusionloader.transforms.executors.decoders.interface import Decoder

_PACKAGES = {"dali": "nvidia.dali", "nvjpeg": "nvidia.nvimgcodec", "torchvision": "torchvision"}
_TITLES = {"dali": "DALI", "nvjpeg": "nvImageCodec", "torchvision": "torchvision"}


def name_of(worker: GpuWorker) -> str:
    """Returns what messages call the decoder of a GPU worker."""
    if isinstance(worker.decoder, str):
        return _TITLES[worker.decoder]
    return type(worker.decoder).__name__


def engine_of(worker: GpuWorker, on_gpu: bool) -> str:
    """Returns the decoder's name, and which nvJPEG decodes for it."""
    name = name_of(worker)
    if not on_gpu or worker.decoder not in ("dali", "nvjpeg"):
        return name
    version = nvjpeg.version()
    if version is None:
        return f"{name} on the CPU, because nvJPEG is missing (pip install {_wheel('nvjpeg')})"
    text = (
        f"{name} with nvJPEG {version[0]}.{version[1]} (hw_decoder_load={worker.hw_decoder_load})"
    )
    if worker.decoder == "dali" and not nvjpeg.decodes_windows():
        since = ".".join(map(str, nvjpeg.WINDOWS_SINCE))
        text += f", as whole images: it decodes windows from {since} on"
    return text


def missing_package(worker: GpuWorker) -> tuple[str, str] | None:
    """Returns a package that a GPU worker needs and that is not there, and how to install it."""
    name = worker.decoder
    if not isinstance(name, str) or _is_there(_PACKAGES[name]):
        return None
    return _TITLES[name], f"pip install {_wheel(name)}"


def _is_there(module: str) -> bool:
    parts = module.split(".")
    names = [".".join(parts[: end + 1]) for end in range(len(parts))]
    return all(importlib.util.find_spec(name) is not None for name in names)


def _wheel(name: str) -> str:
    import torch

    major = int((torch.version.cuda or "12").split(".")[0])
    if name == "dali":
        return f"nvidia-dali-cuda{'130' if major >= 13 else '120'}"
    if name == "nvjpeg":
        return f"nvidia-nvimgcodec-cu{13 if major >= 13 else 12}[nvjpeg]"
    return name


def head_filters(worker: GpuWorker) -> tuple[str, ...] | None:
    """Returns the filters that the head resizes with; ``None`` where the fused kernel resizes.

    A decoder of the user's resizes itself, with all of them.
    """
    return None if isinstance(worker.decoder, str) else FILTERS


def pickled(decoder: Decoder) -> bytes:
    """Returns the user's decoder as it is sent to the worker.

    Raises:
        pickle.PicklingError: it cannot be.
    """
    try:
        return pickle.dumps(decoder, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise pickle.PicklingError(
            f"the decoder {type(decoder).__name__} cannot be sent to the GPU worker, because it "
            f"cannot be pickled ({error}): make it a class of a module, and let it open what it "
            "needs in start(), so that until then it is no more than its arguments"
        ) from error


def make_decoder(named: str | bytes, threads: int, hw_decoder_load: float) -> Decoder:
    """Returns the decoder of that name, not started, or one of the user's that was pickled.

    Raises:
        ImportError: what it decodes with is not there.
    """
    if isinstance(named, bytes):
        decoder: Decoder = pickle.loads(named)
        return decoder
    if named == "nvjpeg":
        from fusionloader.transforms.executors.decoders.nvjpeg_decoder import NvjpegDecoder

        return NvjpegDecoder(threads, hw_decoder_load)
    if named == "torchvision":
        from fusionloader.transforms.executors.decoders.torchvision_decoder import (
            TorchvisionDecoder,
        )

        return TorchvisionDecoder()
    from fusionloader.transforms.executors.decoders.dali_decoder import DaliDecoder

    return DaliDecoder(threads, hw_decoder_load)

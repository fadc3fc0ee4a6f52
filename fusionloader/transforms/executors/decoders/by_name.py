"""Decoders by name: the packages that they need, how to install these, and how to make them."""

from __future__ import annotations

import importlib.util
import pickle

from fusionloader.options.gpu_settings import GpuWorker
from fusionloader.transforms.executors import nvjpeg
from fusionloader.transforms.executors.decoders.head_steps import FILTERS
from fusionloader.transforms.executors.decoders.interface import Decoder

_PACKAGES = {"dali": "nvidia.dali", "nvjpeg": "nvidia.nvimgcodec", "torchvision": "torchvision"}
_TITLES = {"dali": "DALI", "nvjpeg": "nvImageCodec", "torchvision": "torchvision"}


def decoder_title(worker: GpuWorker) -> str:
    """Returns the name of a GPU worker's decoder for messages."""
    if isinstance(worker.decoder, str):
        return _TITLES[worker.decoder]
    return type(worker.decoder).__name__


def describe_decoder(worker: GpuWorker, on_gpu: bool) -> str:
    """Returns the decoder's name, with the version of nvJPEG that it uses."""
    name = decoder_title(worker)
    if not on_gpu or worker.decoder not in ("dali", "nvjpeg"):
        return name
    version = nvjpeg.version()
    if version is None:
        return f"{name} on the CPU, because nvJPEG is missing (pip install {_wheel('nvjpeg')})"
    load = worker.hw_decoder_load
    return f"{name} with nvJPEG {version[0]}.{version[1]} (hw_decoder_load={load})"


def missing_package(worker: GpuWorker) -> tuple[str, str] | None:
    """Returns a package that a GPU worker lacks, and the command that installs it."""
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
    """Returns the filters that the head resizes with; ``None`` if the fused kernel resizes.

    A decoder of the user resizes by itself, with any filter.
    """
    return None if isinstance(worker.decoder, str) else FILTERS


def pickled(decoder: Decoder) -> bytes:
    """Returns the user's decoder, pickled.

    Raises:
        pickle.PicklingError: it cannot be pickled.
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
    """Returns a decoder by its name, or a pickled one of the user; it is not started.

    Raises:
        ImportError: the library that it decodes with is missing.
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

"""Settings of the GPU worker: ``GpuWorker``."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

from fusionloader.system.amounts import parse_bytes

if TYPE_CHECKING:
    from fusionloader.transforms.executors.decoders.interface import Decoder

Sharing = Literal["auto", "off", "temporal", "spatial"]
Where = Literal["process", "thread"]
DecoderName = Literal["dali", "nvjpeg", "torchvision", "workers"]
Memory = Literal["auto", "share", "own"]

_SHARING = ("auto", "off", "temporal", "spatial")
_MEMORY = ("auto", "share", "own")
_WHERE = ("process", "thread")
_DECODERS = ("dali", "nvjpeg", "torchvision", "workers")
_DECODER_METHODS = ("start", "submit", "finished", "close")


@dataclass(frozen=True, slots=True)
class GpuWorker:
    """Settings of a worker that makes the largest samples of each mini-batch on a device.

    Args:
        device: ``None`` for the loader's own ``device``, or ``"cpu"`` for the decoder's CPU
            backend, which runs the same code on machines without a GPU.
        sharing: ``"temporal"`` lets the worker run only while training waits for a batch,
            ``"spatial"`` always. ``"auto"`` tries both, and no GPU worker, for a few iterations
            each, and stays with the fastest.
        memory_limit: limit of device memory, in bytes or as ``"2GiB"``; ``None`` sets no limit.
        memory: whether the worker may borrow, while training waits for a batch, memory that
            training's allocator holds but does not use. ``"share"``: whenever its own allocations
            fail. ``"auto"``: only if the memory peaks of both were found not to fit on the device
            together. ``"own"``: never. Only with temporal sharing on CUDA devices.
        share_limit: memory lent at a time, at most, in bytes or as ``"10GiB"``.
        group_size: samples in a launch, at most; ``None`` lets measurements decide, up to 64.
        threads: number of CPU threads of nvImageCodec, or of each pipeline of DALI.
        hw_decoder_load: 1 to decode images with the hardware JPEG decoder, if there is one, 0 to
            decode none with it; for DALI and nvImageCodec. Its pixels differ from those of the
            device's other decoder, so a fraction would make pixels depend on the group.
        decoder: ``"dali"``; ``"nvjpeg"``, nvImageCodec; ``"torchvision"``; or an object with the
            methods of ``fusionloader.Decoder``, which is pickled into the worker's process and
            also resizes. With ``"workers"`` there is no GPU worker: CPU workers decode, crop and
            resize all samples, and the device augments, converts and normalizes them as batches
            are delivered to it. Only ``sharing="off"`` can be set beside it.
        decoder_timeout: seconds within which the decoder has to finish one of the images that it
            was given; else it is given up.
        where: ``"process"``, a process of its own; or ``"thread"``, a thread of the training
            process, without a second CUDA context. A thread cannot be killed and does not support
            temporal sharing.

    Raises:
        ValueError: a value is out of its range.
    """

    device: str | None = None
    sharing: Sharing = "auto"
    memory_limit: int | str | None = None
    memory: Memory = "auto"
    share_limit: int | str = "10GiB"
    group_size: int | None = None
    threads: int = 1
    hw_decoder_load: Literal[0, 1] = 1
    decoder: DecoderName | Decoder = "dali"
    decoder_timeout: float = 30.0
    where: Where = "process"

    def __post_init__(self) -> None:
        if self.sharing not in _SHARING:
            raise ValueError(f"sharing should be one of {_SHARING}, not {self.sharing!r}")
        if self.where not in _WHERE:
            raise ValueError(f"where should be one of {_WHERE}, not {self.where!r}")
        if self.where == "thread" and self.sharing == "temporal":
            raise ValueError(
                'sharing="temporal" is for where="process": a thread works beside training, '
                'sharing="spatial" or "auto"'
            )
        for name in ("group_size", "threads"):
            value = getattr(self, name)
            if value is None and name == "group_size":
                continue
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} should be a positive int, not {value!r}")
        if self.hw_decoder_load not in (0, 1):
            raise ValueError(f"hw_decoder_load should be 0 or 1, not {self.hw_decoder_load!r}")
        if self.memory_limit is not None:
            parse_bytes(self.memory_limit, "memory_limit")
        self._check_decoder()
        self._check_memory()
        if self.decoder == "workers":
            self._check_workers()

    def _check_workers(self) -> None:
        if self.sharing not in ("auto", "off"):
            raise ValueError(
                f'decoder="workers" augments on delivery, so sharing={self.sharing!r} has no '
                'meaning: leave sharing out, or "off" for CPU workers alone'
            )
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name not in ("decoder", "sharing") and value != each.default:
                raise ValueError(
                    f'decoder="workers" starts no GPU worker, so {each.name}={value!r} has no '
                    f"meaning: leave {each.name} out"
                )

    def _check_decoder(self) -> None:
        decoder, timeout = self.decoder, self.decoder_timeout
        if isinstance(decoder, type):
            raise ValueError(
                f"decoder should be an object: {decoder.__name__}(...) instead of the class"
            )
        missing = [name for name in _DECODER_METHODS if not callable(getattr(decoder, name, None))]
        if decoder not in _DECODERS and (isinstance(decoder, str) or missing):
            raise ValueError(
                f"decoder should be one of {_DECODERS}, or an object with the methods "
                f"{', '.join(_DECODER_METHODS)} (fusionloader.Decoder), not {decoder!r}"
            )
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
            raise ValueError(f"decoder_timeout should be positive seconds, not {timeout!r}")

    def _check_memory(self) -> None:
        if self.memory not in _MEMORY:
            raise ValueError(f"memory should be one of {_MEMORY}, not {self.memory!r}")
        parse_bytes(self.share_limit, "share_limit")
        if self.memory == "share" and self.sharing == "spatial":
            raise ValueError(
                'memory="share" needs sharing="temporal" (or "auto"): training lends memory only '
                "while it waits for a batch, and in spatial sharing the worker runs beside it"
            )
        if self.memory == "share" and self.where == "thread":
            raise ValueError(
                'memory="share" is for where="process": a thread has training\'s own pool'
            )
        if self.memory == "share" and self.decoder != "dali":
            raise ValueError(
                'memory="share" needs decoder="dali": what other decoders allocate cannot be taken '
                "out of training's memory when it is asked back"
            )
        if self.memory == "share" and self.device == "cpu":
            raise ValueError(
                'memory="share" is about memory of a CUDA device, which the CPU backend of DALI '
                'does not use: leave memory="auto"'
            )

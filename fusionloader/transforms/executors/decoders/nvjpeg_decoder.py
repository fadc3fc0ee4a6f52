"""nvJPEG with its hardware engine, through nvImageCodec's wheel; libjpeg-turbo on the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fusionloader.transforms.executors.decoders.whole_images import WholeImageDecoder
from fusionloader.transforms.executors.device_errors import DecodeFailed

if TYPE_CHECKING:
    import torch

_BAD = DecodeFailed("nvImageCodec cannot decode it")


class NvjpegDecoder(WholeImageDecoder):
    """Decodes by ``nvidia.nvimgcodec``."""

    def __init__(
        self, threads: int = 1, hw_decoder_load: float = 1.0, fancy_upsampling: bool = True
    ) -> None:
        """Arguments are those of ``DaliHead``; a load of 0 leaves the hardware engine unused."""
        self._threads, self._load, self._fancy = threads, hw_decoder_load, fancy_upsampling

    def _open(self) -> None:
        from nvidia import nvimgcodec

        self._library: Any = nvimgcodec
        kinds, device = [nvimgcodec.CPU_ONLY], nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY
        if self._device.type == "cuda":
            device = self._device.index
            kinds = [nvimgcodec.GPU_ONLY, nvimgcodec.HYBRID_CPU_GPU, *kinds]
            if self._load:
                kinds.insert(0, nvimgcodec.HW_GPU_ONLY)
        self._decoder: Any = nvimgcodec.Decoder(
            device_id=device,
            max_num_cpu_threads=self._threads,
            backends=[nvimgcodec.Backend(kind) for kind in kinds],
            options=f":fancy_upsampling={self._fancy:d}",
        )
        self._parameters: Any = nvimgcodec.DecodeParams(
            apply_exif_orientation=False,  # as Pillow's convert; EXIF is left to the user
            sample_format=nvimgcodec.SampleFormat.I_RGB,
        )

    def _decode(self, files: Sequence[bytes]) -> list[torch.Tensor | str]:
        import torch

        streams: dict[int, Any] = {}
        for place, file in enumerate(files):
            try:
                streams[place] = self._library.CodeStream(file)
            except RuntimeError:  # a bad header; the library says no more
                continue
        found: list[torch.Tensor | str] = [_BAD] * len(files)
        if not streams:
            return found
        stream = 0
        if self._device.type == "cuda":
            stream = torch.cuda.current_stream(self._device).cuda_stream
        images = self._decoder.decode(
            list(streams.values()), params=self._parameters, cuda_stream=stream
        )
        for place, image in zip(streams, images, strict=True):
            if image is not None:
                found[place] = self._tensor(image)
        return found

    def _tensor(self, image: Any) -> torch.Tensor:
        import torch
        from torch.utils.dlpack import from_dlpack

        if self._device.type == "cpu":  # its DLPack needs the driver, which may be missing
            return torch.from_numpy(np.asarray(image))
        return from_dlpack(image)

"""torchvision as a decoder: nvJPEG on a CUDA device, libjpeg-turbo on the CPU."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fusionloader.transforms.executors.decoders.whole_images import WholeImageDecoder
from fusionloader.transforms.executors.device_errors import (
    DecodeFailed,
    is_device_lost,
    is_shortage,
)

if TYPE_CHECKING:
    import torch


class TorchvisionDecoder(WholeImageDecoder):
    """Decodes by ``torchvision.io.decode_jpeg``."""

    def _open(self) -> None:
        from torchvision.io import decode_jpeg

        self._decode_jpeg: Any = decode_jpeg

    def _decode(self, files: Sequence[bytes]) -> list[torch.Tensor | str]:
        """Decodes all files at once; if that fails, each half, down to the bad files."""
        import torch

        data = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # decode_jpeg is deprecated
                planes = self._decode_jpeg(data, mode="RGB", device=self._device)
        except RuntimeError as error:
            if is_shortage(error) or is_device_lost(error):
                raise
            if len(files) == 1:
                return [DecodeFailed(_cause(error))]
        else:
            return [image.permute(1, 2, 0) for image in planes]
        middle = len(files) // 2
        return self._decode(files[:middle]) + self._decode(files[middle:])


def _cause(error: RuntimeError) -> str:
    """Returns torchvision's message without the line in its source."""
    return str(error).splitlines()[0].rpartition(", ")[2] or "torchvision cannot decode it"

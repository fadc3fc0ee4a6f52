"""``fusionloader.transforms.io`` as the decoder ``fusionloader`` of the imread benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from imread_benchmark.decoders import BaseDecoder

if TYPE_CHECKING:
    import numpy as np


class FusionLoaderDecoder(BaseDecoder):
    """Whole images by ``decode_jpeg``, which decodes in the thread that calls it.

    There is no number of threads to set, so that plans give the decoder ``threads: [default]``.
    """

    name = "fusionloader"
    package_name = "fusionloader"

    def decode(self, data: bytes) -> np.ndarray:
        """Returns Pillow's pixels, rows x columns x RGB, contiguous bytes."""
        # Here, as in the benchmark's own decoders: listing decoders loads none of their libraries.
        from fusionloader.transforms.io import decode_jpeg

        return decode_jpeg(data)

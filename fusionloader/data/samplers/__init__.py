"""Batch samplers for any loader: ``BucketSampler`` and ``MixSampler``.

See docs/guide/samplers.md.
"""

from __future__ import annotations

from fusionloader.data.samplers.bucket_sampler import BucketSampler
from fusionloader.data.samplers.image_sizes import image_sizes
from fusionloader.data.samplers.mix_sampler import MixSampler

__all__ = ["BucketSampler", "MixSampler", "image_sizes"]

"""Batches by rule: ``BucketSampler`` and ``MixSampler``, for any loader that takes a batch sampler.

See docs/samplers.md.
"""

from __future__ import annotations

from fusionloader.samplers.bucket_sampler import BucketSampler
from fusionloader.samplers.image_sizes import image_sizes
from fusionloader.samplers.mix_sampler import MixSampler

__all__ = ["BucketSampler", "MixSampler", "image_sizes"]

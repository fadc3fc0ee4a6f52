"""Where DALI's pipelines run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nvidia.dali import Pipeline

# DALI has no types: a sample's pixels are a uint8 tensor of DALI's, height x width x channels.
Image = Any


@dataclass(frozen=True, slots=True)
class Backend:
    """Where pipelines run, and on what: ``device`` is a CUDA device's index, or ``None``."""

    device: int | None = None
    max_batch: int = 64
    threads: int = 1

    @property
    def on_gpu(self) -> bool:
        """Whether images are in the memory of a GPU."""
        return self.device is not None

    def pipeline(self) -> Pipeline:
        """An empty pipeline. Nothing is prefetched: each run is of inputs that were just given."""
        return Pipeline(
            batch_size=self.max_batch,
            num_threads=self.threads,
            device_id=self.device,
            prefetch_queue_depth=1,
        )

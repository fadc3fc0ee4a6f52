"""Where DALI's pipelines run, and the inputs that each run is fed with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from nvidia.dali import Pipeline, fn, types

# DALI has no types: a node of a graph, and a sample's pixels, a uint8 tensor of DALI's, height x
# width x channels, or on the CPU an array.
Node = Any
Image = Any
ELEMENTS = {
    "uint8": types.UINT8,
    "int16": types.INT16,
    "int32": types.INT32,
    "float32": types.FLOAT,
}


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


@dataclass(frozen=True, slots=True)
class Input:
    """A parameter of a task: per sample a number, or an array of ``shape``."""

    element: str
    shape: tuple[int, ...] = ()

    def node(self, name: str) -> Node:
        """The input of that name in the graph being defined."""
        return fn.external_source(name=name, dtype=ELEMENTS[self.element], ndim=len(self.shape))

    def array(self, values: Iterable[object]) -> npt.NDArray[np.generic]:
        """All samples' values in one piece of memory, which is what is fed fastest."""
        return np.array(list(values), self.element).reshape(-1, *self.shape)

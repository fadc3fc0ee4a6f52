"""A prebuilt DALI pipeline whose parameters are inputs: built once, run with new values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from nvidia.dali import Pipeline, fn, types

from fusionloader.executors.dali.prebuilt import Prebuilt

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
    channels: Literal[1, 3] = 3
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

    def operand(self, parameter: Node) -> Node:
        """A parameter as an operand of pixels. Named arguments stay on the CPU on every device."""
        return parameter.gpu() if self.on_gpu else parameter


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


# From a backend, the images' node and the inputs' nodes to the node of the results.
Graph = Callable[..., Node]
# One sample's values of a task's inputs, in their order.
Values = tuple[object, ...]


class PipelineTask:
    """A graph applied to any number of images of one size."""

    def __init__(self, backend: Backend, graph: Graph, inputs: Mapping[str, Input]) -> None:
        """``graph`` is called with the backend, the images and each input by its name."""
        self._inputs = inputs
        self._on_gpu = backend.on_gpu
        self._pipeline = Prebuilt(lambda: _defined(backend, graph, inputs))

    def build(self) -> None:
        """Makes it ready to run; needs the device."""
        self._pipeline.build()

    def run(self, images: Sequence[Image], values: Sequence[Values]) -> list[Image]:
        """The results for images of height x width x channels, with each one's inputs' values."""
        # One array is fed with less work than many, more so than the copy costs.
        feed: dict[str, object] = {"images": list(images) if self._on_gpu else np.stack(images)}
        for (name, given), column in zip(
            self._inputs.items(), zip(*values, strict=True), strict=False
        ):
            feed[name] = given.array(column)
        (results,) = self._pipeline.run(**feed)
        return list(results) if self._on_gpu else list(np.asarray(results.as_tensor()))


def _defined(backend: Backend, graph: Graph, inputs: Mapping[str, Input]) -> Pipeline:
    pipeline = backend.pipeline()
    with pipeline:
        images = fn.external_source(
            name="images",
            layout="HWC",
            ndim=3,
            dtype=types.UINT8,
            device="gpu" if backend.on_gpu else "cpu",
            # Stacked in run for this run alone, which ends before the memory does.
            no_copy=True if not backend.on_gpu else None,
        )
        nodes = {name: given.node(name) for name, given in inputs.items()}
        pipeline.set_outputs(graph(backend, images, **nodes))
    return pipeline

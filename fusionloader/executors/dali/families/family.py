"""The op families: operations that one pipeline does, with parameters of each sample's own."""

from __future__ import annotations

from dataclasses import dataclass

from fusionloader.executors.dali.families import level_graphs, place_graphs
from fusionloader.executors.dali.task import Backend, Graph, Input, PipelineTask
from fusionloader.plan.operations import Operation

_FACTOR = Input("float32")
_MATRIX = Input("float32", (2, 3))
_PAIR = Input("float32", (2,))


@dataclass(frozen=True, slots=True)
class Family:
    """A graph, its inputs in the order of a step's values, and an operation to try it with."""

    graph: Graph
    inputs: dict[str, Input]
    example: Operation


def families(channels: int) -> dict[str, Family]:
    """All families, for images of so many channels."""
    level, place = level_graphs, place_graphs
    color = Input("uint8", (channels,))
    bits = {"add": Input("int16"), "mask": Input("uint8"), "inverted_from": Input("int16")}
    rectangle = {"corner": _PAIR, "size": _PAIR, "fill": Input("float32", (channels,))}
    factor = {"factor": _FACTOR}
    return {
        "warp": Family(place.warp, {"matrix": _MATRIX}, ("hflip",)),
        "filled_warp": Family(
            place.filled_warp, {"matrix": _MATRIX, "fill": color}, _rotation("nearest")
        ),
        "bilinear_warp": Family(
            place.bilinear_warp, {"matrix": _MATRIX, "fill": color}, _rotation("bilinear")
        ),
        "brightness": Family(level.brightness, factor, ("brightness", 0.5)),
        "contrast": Family(level.contrast, factor, ("contrast", 0.5)),
        "saturation": Family(level.saturation, factor, ("saturation", 0.5)),
        "sharpness": Family(
            place.sharpness, {**factor, "inner": Input("int32", (2,))}, ("sharpness", 0.5)
        ),
        "bits": Family(level.bits, bits, ("invert",)),
        "autocontrast": Family(level.autocontrast, {}, ("autocontrast",)),
        "equalize": Family(level.equalize, {"pixels": Input("int32")}, ("equalize",)),
        "blur": Family(
            place.blur, {"window": Input("int32", (2,)), "sigma": _PAIR}, ("blur", 3, 3, 1.0, 1.0)
        ),
        "cutout": Family(place.cutout, rectangle, ("cutout", 0, 0, 1, 1, (0, 0, 0))),
    }


def task_of(family: Family, backend: Backend) -> PipelineTask:
    """The family's pipeline, not built yet."""
    return PipelineTask(backend, family.graph, family.inputs)


def _rotation(interpolation: str) -> Operation:
    return ("rotate", 10.0, interpolation, False, None, (1, 1, 1))

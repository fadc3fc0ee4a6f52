"""Policies of Deep AutoAugment: reads and checks layers of operations, and makes them stages.

Zheng et al., "Deep AutoAugment" (2022). ``docs/guide/policies.md`` describes the files.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from fusionloader.transforms.plan.stages import (
    Color,
    Interpolation,
    Magnitude,
    PolicyOp,
    PolicyStep,
    RandomPolicy,
)

# Of the sum of probabilities, which may be written as float32, or with a few digits.
_TOLERANCE = 1e-4
_BOTH_WAYS, _ONE_WAY = (-1.0, 1.0), (0.0, 1.0)
_FACTOR = Magnitude(scale=0.9, offset=1.0)
# For each operation what a magnitude of 1 does, and the range of magnitudes; None without any.
_OPERATIONS: dict[PolicyOp, tuple[Magnitude, tuple[float, float]] | None] = {
    "identity": None,
    "shear_x": (Magnitude(scale=0.3), _BOTH_WAYS),
    "shear_y": (Magnitude(scale=0.3), _BOTH_WAYS),
    "translate_x": (Magnitude(scale=0.45, relative_to="width"), _BOTH_WAYS),
    "translate_y": (Magnitude(scale=0.45, relative_to="height"), _BOTH_WAYS),
    "rotate": (Magnitude(scale=30.0), _BOTH_WAYS),
    "brightness": (_FACTOR, _BOTH_WAYS),
    "contrast": (_FACTOR, _BOTH_WAYS),
    "saturation": (_FACTOR, _BOTH_WAYS),
    "sharpness": (_FACTOR, _BOTH_WAYS),
    "posterize": (Magnitude(scale=-4.0, offset=8.0, truncate=True), _ONE_WAY),
    "solarize": (Magnitude(scale=-256.0, offset=256.0), _ONE_WAY),
    "solarize_add": (Magnitude(scale=110.0, truncate=True), _ONE_WAY),
    "cutout": (Magnitude(scale=0.6), _ONE_WAY),
    "autocontrast": None,
    "equalize": None,
    "invert": None,
    "hflip": None,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """An operation of a layer, its magnitude, and the probability that it is drawn."""

    operation: PolicyOp
    magnitude: float
    probability: float


Layers = tuple[tuple[Entry, ...], ...]
# An unchecked entry: it should be an operation, a magnitude and a probability.
RawEntry: TypeAlias = Any


def checked_layers(layers: Iterable[Iterable[RawEntry]], where: str) -> Layers:
    """Returns layers of (operation, magnitude, probability), checked.

    Raises:
        ValueError: an entry is invalid, or the probabilities of a layer do not add up to 1. The
            message begins with ``where`` and the numbers of layer and entry, counted from 0.
    """
    try:
        rows = [list(layer) for layer in layers]
    except TypeError:
        raise ValueError(f"{where}: layers are to be sequences of entries") from None
    if not rows:
        raise ValueError(f"{where}: there are no layers")
    return tuple(_checked_layer(row, f"{where}: layer {i}") for i, row in enumerate(rows))


def _checked_layer(entries: list[RawEntry], where: str) -> tuple[Entry, ...]:
    if not entries:
        raise ValueError(f"{where} has no entries")
    made = tuple(_checked_entry(entry, f"{where}, entry {i}") for i, entry in enumerate(entries))
    total = sum(entry.probability for entry in made)
    if abs(total - 1.0) > _TOLERANCE:
        raise ValueError(f"{where}: its probabilities add up to {total:.6g}, not to 1")
    return made


def _checked_entry(entry: RawEntry, where: str) -> Entry:
    try:
        operation, magnitude, probability = entry
    except (TypeError, ValueError):
        message = f"{where}: {entry!r} is not an operation, a magnitude and a probability"
        raise ValueError(message) from None
    if not isinstance(operation, str) or operation not in _OPERATIONS:
        known = ", ".join(_OPERATIONS)
        raise ValueError(f"{where}: unknown operation {operation!r}; known are {known}")
    kind: Any = operation
    magnitude = _number(0.0 if magnitude is None else magnitude, "magnitude", where)
    probability = _number(probability, "probability", where)
    known_kind = _OPERATIONS[kind]
    low, high = known_kind[1] if known_kind else (0.0, 0.0)
    if not low <= magnitude <= high:
        allowed = f"from {low:g} to {high:g}" if known_kind else "0 or left out"
        raise ValueError(f"{where}: the magnitude of {operation} is to be {allowed}: {magnitude}")
    if not 0.0 <= probability <= 1.0:
        raise ValueError(f"{where}: the probability is to be from 0 to 1: {probability}")
    return Entry(kind, magnitude, probability)


def _number(value: Any, name: str, where: str) -> float:
    if isinstance(value, (bool, str)):
        raise ValueError(f"{where}: the {name} is not a number: {value!r}")
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: the {name} is not a number: {value!r}") from None


def read_layers(path: str | os.PathLike[str]) -> Layers:
    """Returns the layers of a ``.json`` or ``.npz`` file.

    Raises:
        ValueError: the file is not a policy; the message says where it is wrong.
    """
    name = os.fspath(path)
    if name.endswith(".npz"):
        return checked_layers(_from_npz(name), name)
    if name.endswith(".json"):
        return checked_layers(_from_json(name), name)
    raise ValueError(f"{name}: a policy file ends in .json or .npz")


def _from_json(name: str) -> list[list[RawEntry]]:
    with open(name, encoding="utf-8") as file:
        try:
            content = json.load(file)
        except ValueError as error:
            raise ValueError(f"{name}: not JSON: {error}") from None
    layers = content.get("layers") if isinstance(content, dict) else None
    if not isinstance(layers, list) or not all(isinstance(layer, list) for layer in layers):
        raise ValueError(f'{name}: an object with a list of lists "layers" is expected')
    return [
        [_json_entry(entry, f"{name}: layer {i}, entry {j}") for j, entry in enumerate(layer)]
        for i, layer in enumerate(layers)
    ]


def _json_entry(entry: RawEntry, where: str) -> RawEntry:
    needed, allowed = {"operation", "probability"}, {"operation", "probability", "magnitude"}
    if not isinstance(entry, dict) or not needed <= set(entry) <= allowed:
        raise ValueError(
            f'{where}: an object of "operation", "magnitude" and "probability" is expected'
        )
    return entry["operation"], entry.get("magnitude"), entry["probability"]


def _from_npz(name: str) -> list[list[RawEntry]]:
    try:
        with np.load(name, allow_pickle=False) as file:
            operation, magnitude, probability = (
                file[key] for key in ("operation", "magnitude", "probability")
            )
    except KeyError as error:
        raise ValueError(f"{name}: {error.args[0]}") from None
    except (ValueError, zipfile.BadZipFile) as error:
        raise ValueError(f"{name}: not an .npz file of plain arrays: {error}") from None
    if operation.ndim != 2 or not operation.shape == magnitude.shape == probability.shape:
        raise ValueError(f"{name}: three arrays of layers x entries are expected")
    columns = (operation.tolist(), magnitude.tolist(), probability.tolist())
    return [list(_without_blanks(zip(*rows, strict=True))) for rows in zip(*columns, strict=True)]


def _without_blanks(entries: Iterator[RawEntry]) -> Iterator[RawEntry]:
    """Drops the entries without name and probability that fill up short layers."""
    return (entry for entry in entries if entry[0] != "" or entry[2] != 0)


def stages(layers: Layers, interpolation: Interpolation, fill: Color) -> tuple[RandomPolicy, ...]:
    """Returns a stage for each layer; the stage draws one of the layer's entries."""
    return tuple(
        RandomPolicy(
            tuple((_step(entry),) for entry in layer),
            1,
            (interpolation,),
            fill,
            tuple(entry.probability for entry in layer),
        )
        for layer in layers
    )


def _step(entry: Entry) -> PolicyStep:
    kind = _OPERATIONS[entry.operation]
    if kind is None:
        return PolicyStep(entry.operation)
    magnitude = replace(kind[0], levels=(entry.magnitude,))
    return PolicyStep(entry.operation, 1.0, magnitude)


def as_tuples(layers: Layers) -> Sequence[Sequence[tuple[str, float, float]]]:
    return [[(e.operation, e.magnitude, e.probability) for e in layer] for layer in layers]

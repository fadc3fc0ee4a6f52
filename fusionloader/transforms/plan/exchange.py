"""Plans as JSON that another machine may send, and that is checked in every part.

A value of a stage's class is an object with all fields, and the class's name as ``type``. A field's
annotation says which values it may have. Numbers have bounds besides those of the native executor,
which limit the memory and the time that a plan can cost.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import math
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from fusionloader.transforms.plan.arguments import MOST_NESTED
from fusionloader.transforms.plan.stages import (
    Color,
    Convert,
    Layout,
    Magnitude,
    PadMode,
    Plan,
    PolicyStep,
    Rounding,
    Stage,
)

MOST_VALUES = 1 << 14
"""Maximum number of values in a plan: sixteen times those of timm's longest policy."""
MOST_BYTES = 3 * 256 * 8
"""Maximum bytes of a field: a conversion of three channels to float64."""
LONGEST_SIDE = 1 << 14
"""Maximum height and width, in pixels, that a plan may give an image."""
MOST_REPEATS = 256
"""Maximum number of times that a stage may do something."""

_DEEPEST = MOST_NESTED + 4  # a magnitude in a step in a policy in all containers of a plan
_LARGEST = 1 << 24  # maximum of any other integer, as in csrc/ops/limits.hpp
_LONGEST_TEXT = 100
_NOT_FINITE = {"inf": math.inf, "-inf": -math.inf}  # JSON has no such numbers

_SIDES = (1, LONGEST_SIDE)
_COUNTS = (-MOST_REPEATS, MOST_REPEATS)
_BOUNDS = {
    **dict.fromkeys(("height", "width", "size", "max_size"), _SIDES),
    **dict.fromkeys(("kernel_width", "kernel_height", "border"), (0, LONGEST_SIDE)),
    **dict.fromkeys(("repeats", "depth", "least_boxes", "most_boxes"), _COUNTS),
    "bins": (0, _LARGEST),
    "AugMix.width": (1, MOST_REPEATS),
}
# Operations that ``Fixed`` may have, with the types of their arguments; a rounding may follow.
_OPERATIONS: dict[str, tuple[Any, ...]] = {
    "grayscale": (),
    "invert": (),
    "autocontrast": (),
    "equalize": (),
    "posterize": (int,),
    "solarize": (float,),
    "sharpness": (float,),
    "pad": (int, int, int, int, PadMode, Color),
    "channels": (int, int, int),
    "to_floats": (Layout,),
    "normalize": (tuple[float, float, float], tuple[float, float, float]),
}

_ROUNDED = ("grayscale", "autocontrast", "sharpness")

_Json: TypeAlias = Any


class _AnOperation:
    """Type of ``Fixed.operation``, whose annotation is not complete."""


_KINDS: dict[str, type] = {
    kind.__name__: kind for kind in (Plan, Convert, *get_args(Stage), PolicyStep, Magnitude)
}


def plan_to_data(plan: Plan) -> dict[str, Any]:
    """Returns a plan as values that ``json`` writes.

    Raises:
        ValueError: ``plan_from_data`` would refuse it, as it is too large to be sent.
    """
    data = _to_json(plan)
    assert isinstance(data, dict)
    if plan_from_data(data) != plan:
        raise ValueError("a plan has values of other types than its stages say")
    return data


def plan_from_data(data: Mapping[str, Any]) -> Plan:
    """Returns the plan that ``plan_to_data`` wrote; ``data`` need not be trusted.

    Raises:
        ValueError: it is not a plan; the text says what is wrong, and where in the plan.
    """
    plan = _Reader().read(Plan, data, "plan")
    assert isinstance(plan, Plan)
    return plan


def _to_json(value: object) -> _Json:
    if dataclasses.is_dataclass(value):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        named = {name: _to_json(found) for name, found in fields.items()}
        return {"type": type(value).__name__, **named}
    if isinstance(value, tuple):
        return list(map(_to_json, value))
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and math.isinf(value):
        return str(value)
    return value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, localns={"Operation": _AnOperation})


class _Reader:
    """Decodes one plan from JSON, and limits how many values it has and how deep they nest."""

    def __init__(self) -> None:
        self._count = 0
        self._depth = 0

    def read(self, hint: Any, data: _Json, where: str) -> object:
        """Returns the value of type ``hint`` that ``data`` stands for; errors name ``where``."""
        self._count += 1
        if self._count > MOST_VALUES:
            raise ValueError(f"{where}: a plan has {MOST_VALUES} values at most")
        origin = get_origin(hint)
        if origin is Literal:
            return _literal(get_args(hint), data, where)
        if origin in (Union, types.UnionType):
            return self._one_of(get_args(hint), data, where)
        if origin is tuple:
            return self._tuple(get_args(hint), data, where)
        if hint is _AnOperation:
            return self._operation(data, where)
        if dataclasses.is_dataclass(hint):
            return self._instance((hint,), data, where)
        return _plain(hint, data, where)

    def _one_of(self, hints: Sequence[Any], data: _Json, where: str) -> object:
        kinds = [hint for hint in hints if hint is not types.NoneType]
        if data is None and len(kinds) < len(hints):
            return None
        return (
            self.read(kinds[0], data, where)
            if len(kinds) == 1
            else self._instance(kinds, data, where)
        )

    def _tuple(
        self, hints: Sequence[Any], data: _Json, where: str, first: int = 0
    ) -> tuple[object, ...]:
        if not isinstance(data, list):
            raise _unlike("a list", data, where)
        if hints and hints[-1] is ...:
            hints = (hints[0],) * len(data)
        if len(data) != len(hints):
            raise ValueError(f"{where} should have {len(hints)} values, not {len(data)}")
        return tuple(
            self.read(hint, each, f"{where}[{place}]")
            for place, (hint, each) in enumerate(zip(hints, data, strict=True), first)
        )

    def _operation(self, data: _Json, where: str) -> tuple[object, ...]:
        name = data[0] if isinstance(data, list) and data else None
        if not isinstance(name, str) or name not in _OPERATIONS:
            raise _unlike(f"one of the operations {', '.join(_OPERATIONS)}", name, where)
        types = _OPERATIONS[name]
        rounded = (Rounding,) if len(data) == len(types) + 2 and name in _ROUNDED else ()
        return (name, *self._tuple((*types, *rounded), data[1:], where, 1))

    def _instance(self, kinds: Sequence[Any], data: _Json, where: str) -> object:
        name = data.get("type") if isinstance(data, dict) else None
        kind = _KINDS.get(name) if isinstance(name, str) else None
        if kind is None or kind not in kinds:
            names = ", ".join(each.__name__ for each in kinds)
            found = name if isinstance(data, dict) else data
            raise _unlike(f"a {names}" if len(kinds) == 1 else f"one of {names}", found, where)
        hints = _hints(kind)
        if data.keys() != {"type", *hints}:
            other = sorted(map(str, data.keys() ^ {"type", *hints}))[0][:_LONGEST_TEXT]
            raise ValueError(f"{where}: a {name} lacks the field {other!r}, or should not have it")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError(f"{where}: a plan's stages are nested {MOST_NESTED} deep at most")
        fields = {each: self.read(hints[each], data[each], f"{where}.{each}") for each in hints}
        self._depth -= 1
        for each, value in fields.items():
            _require_bounds(f"{name}.{each}", each, value, where)
        made: object = kind(**fields)
        return made


def _require_bounds(full_name: str, name: str, value: object, where: str) -> None:
    bounds = _BOUNDS.get(full_name) or _BOUNDS.get(name)
    if bounds and isinstance(value, int) and not bounds[0] <= value <= bounds[1]:
        raise ValueError(f"{where}.{name} should be {bounds[0]} to {bounds[1]}, not {value}")


def _literal(options: Sequence[object], data: _Json, where: str) -> object:
    for option in options:
        if type(data) is type(option) and data == option:  # True == 1 == 1.0
            return option
    raise _unlike(f"one of {', '.join(map(repr, options))}", data, where)


def _plain(hint: Any, data: _Json, where: str) -> object:
    if hint is float:
        return _float(data, where)
    if hint is bytes:
        return _bytes(data, where)
    if hint is bool and isinstance(data, bool):
        return data
    if hint is int and isinstance(data, int) and not isinstance(data, bool):
        if abs(data) > _LARGEST:
            raise ValueError(f"{where} should be {-_LARGEST} to {_LARGEST}")
        return data
    raise _unlike({bool: "true or false", int: "an integer"}[hint], data, where)


def _float(data: _Json, where: str) -> float:
    if isinstance(data, str) and data in _NOT_FINITE:
        return _NOT_FINITE[data]
    if not isinstance(data, int | float) or isinstance(data, bool):
        raise _unlike("a number", data, where)
    try:
        value = float(data)
    except OverflowError:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError(f"{where} should be a finite number")
    return value


def _bytes(data: _Json, where: str) -> bytes:
    most = (MOST_BYTES + 2) // 3 * 4
    if not isinstance(data, str):
        raise _unlike("bytes in base64", data, where)
    if len(data) > most:
        raise ValueError(f"{where} has {len(data)} characters, and may have {most}")
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        raise ValueError(f"{where} is not base64") from None


def _unlike(expected: str, data: object, where: str) -> ValueError:
    shown = repr(data) if isinstance(data, str | int | float | None) else type(data).__name__
    return ValueError(f"{where} should be {expected}, not {shown[:_LONGEST_TEXT]}")

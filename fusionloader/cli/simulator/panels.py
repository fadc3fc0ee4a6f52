"""What a figure consists of: a table, and panels to draw."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bars:
    """A panel of grouped bars: for every group (model) one value a bar."""

    title: str
    groups: tuple[str, ...]
    bars: dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class Lines:
    """A panel of lines over training steps, with the number of CPU workers written above."""

    title: str
    lines: dict[str, list[tuple[float, float]]]
    marks: tuple[tuple[float, str], ...] = ()


@dataclass(frozen=True, slots=True)
class SimulationFigure:
    """A table and what to draw."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    panels: list[Bars | Lines]
    note: str

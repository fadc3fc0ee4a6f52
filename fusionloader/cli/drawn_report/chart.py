"""What a figure of the page consists of, and what all charts have in common.

Charts are Vega-Lite specifications (https://vega.github.io/vega-lite). Colors in them are names of
the page's CSS variables, ``"@decode"``, so that a chart can follow the reader's color scheme.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Spec = dict[str, object]
Columns = Mapping[str, Sequence[object]]
"""Rows by column: a third of the size that they have with names in each."""

_ROW, _FEW_ROWS = 15, 120  # pixels of a row, and of all rows at least

SECONDS = "seconds since the first thing seen"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the data sets that a reader can choose for a chart."""

    title: str
    data: Mapping[str, Columns]


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing.

    Attributes:
        name: name of the element on the page.
        label: what is drawn, for those who do not see it.
        spec: specification in Vega-Lite; its data is named.
        choices: data by name; a reader chooses if there are several.
    """

    name: str
    label: str
    spec: Spec
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """The figures behind drawings, as text."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """A part of the page: what is to be seen in words, drawn, and as a table.

    Attributes:
        name: name of the part, for links.
        title: a question that it answers.
        summary: the answer, and how to read the drawing.
        charts: none where there is nothing to draw; the summary says why then.
        table: the same for those who do not see it.
    """

    name: str
    title: str
    summary: str
    charts: tuple[Chart, ...] = ()
    table: Table | None = None


def chart(name: str, label: str, spec: Spec, **data: Columns) -> Chart:
    """Returns a chart without choices."""
    return Chart(name, label, spec, (Choice("", data),))


def rounded(values: npt.ArrayLike, digits: int = 4) -> list[float]:
    """Returns numbers with as many significant digits as a drawing can show."""
    return [float(f"{value:.{digits}g}") for value in np.asarray(values).tolist()]


def spec(height: int, *layers: Spec, **common: object) -> Spec:
    """Returns a specification as wide as the page."""
    return {
        "width": "container",
        "height": height,
        "data": {"name": "rows"},
        "layer": list(layers),
        **common,
    }


def rows_height(rows: int) -> int:
    """Returns the height of a chart with a row for each worker, in pixels."""
    return max(_ROW * rows, _FEW_ROWS)


def numeric(field: str, title: str | None, **more: object) -> Spec:
    """Returns the encoding of a number."""
    return {"field": field, "type": "quantitative", "title": title, **more}


def nominal(field: str, **more: object) -> Spec:
    """Returns the encoding of a name; names keep the order of the data."""
    return {"field": field, "type": "nominal", "title": None, "sort": None, **more}


def colors(field: str, scheme: Mapping[str, str], **legend: object) -> Spec:
    """Returns the encoding of a name as a color; all of ``scheme`` is in the legend."""
    scale = {"domain": list(scheme), "range": list(scheme.values())}
    return nominal(field, scale=scale, legend=legend)


def tip(field: str, title: str, form: str | None = None) -> Spec:
    """Returns a line of a tooltip."""
    if form is None:
        return {"field": field, "title": title}
    return {"field": field, "type": "quantitative", "title": title, "format": form}

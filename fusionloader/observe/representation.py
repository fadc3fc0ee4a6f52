"""How a loader shows itself: a line, and a page for notebooks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from fusionloader.observe.statistics.loader_statistics import describe_samples
from fusionloader.observe.statistics.snapshot import LoaderStats
from fusionloader.observe.statistics.stages import StageStats
from fusionloader.options.loader_options import LoaderOptions

# Colors are the notebook's, light or dark.
_PAGE = """<div style="line-height: 1.5">
<div><strong>{name}</strong> of {samples}: {arguments}</div>
<div>{waiting}</div>
{table}
<details><summary>How samples are made</summary>\
<pre style="overflow-x: auto">{explained}</pre></details>
</div>"""
_TABLE = """<table style="{style}">
<thead><tr><th scope="col" style="text-align: left">stage</th>
<th scope="col">capacity in samples/s</th><th scope="col">share of the work</th></tr></thead>
<tbody>
{rows}
</tbody></table>"""
_STYLE = "font-variant-numeric: tabular-nums; text-align: right; border-spacing: 1em 0"
_ROW = (
    '<tr><th scope="row" style="text-align: left">{name}</th>'
    "<td>{capacity:,.0f}</td><td>{share:.0%}</td></tr>"
)


@dataclass(frozen=True, slots=True)
class DescribedLoader:
    """What a loader shows of itself.

    Attributes:
        name: name of its class.
        way: how samples are made, in two words.
        explain: returns the same, a line per stage.
    """

    name: str
    options: LoaderOptions
    way: str
    explain: Callable[[], str]
    stats: LoaderStats


class Shown:
    """Shows what ``_described()`` returns, in a line and in notebooks."""

    def _described(self) -> DescribedLoader:
        raise NotImplementedError

    def __repr__(self) -> str:
        return _shown(self._described, as_text) or object.__repr__(self)

    def _repr_html_(self) -> str | None:
        return _shown(self._described, as_html)


def _shown(
    described: Callable[[], DescribedLoader], show: Callable[[DescribedLoader], str]
) -> str | None:
    """Returns what ``show`` makes; ``None`` where a loader cannot even be described.

    Its dataset's code may fail, and it may be half made when an error shows it.
    """
    with contextlib.suppress(Exception):
        return show(described())
    return None


def as_text(loader: DescribedLoader) -> str:
    """Returns a line."""
    parts = [f"<{loader.name} of {describe_samples(loader.options.dataset)}: {_arguments(loader)}"]
    if loader.stats.wait_share is not None:
        parts.append(f"training waits {loader.stats.wait_share:.0%}")
    return ", ".join(parts) + ">"


def as_html(loader: DescribedLoader) -> str:
    """Returns a page for notebooks."""
    return _PAGE.format(
        name=escape(loader.name),
        samples=escape(describe_samples(loader.options.dataset)),
        arguments=escape(_arguments(loader)),
        waiting=escape(loader.stats.waiting),
        table=_table(loader.stats.stages),
        explained=escape(loader.explain()),
    )


def _arguments(loader: DescribedLoader) -> str:
    options = loader.options
    size = f"batch_size={options.batch_size}"
    if options.batch_size is None and options.batch_sampler is not None:
        size = f"batch_sampler={type(options.batch_sampler).__name__}"
    return f"{size}, num_workers={options.num_workers}, {loader.way}"


def measured(stats: LoaderStats) -> list[str]:
    """Returns lines of what training and the cache have shown, once they have."""
    lines = []
    if stats.cache is not None and stats.cache.epoch_hits + stats.cache.epoch_misses:
        lines.append(stats.cache.explain())
    return lines if stats.wait_share is None else [*lines, stats.waiting]


def _table(stages: tuple[StageStats, ...]) -> str:
    total = sum(stage.seconds for stage in stages)
    rows = [
        _ROW.format(name=escape(each.name), capacity=each.capacity, share=each.seconds / total)
        for each in stages
    ]
    return _TABLE.format(style=_STYLE, rows="\n".join(rows)) if rows else ""

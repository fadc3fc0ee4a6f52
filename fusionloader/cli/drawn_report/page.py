"""The page: what is said about a timeline, in order of what matters first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timezone

from fusionloader.cli.drawn_report.analysis.verdict import TraceVerdict, verdict_on
from fusionloader.cli.drawn_report.analysis.waits import TraceWaits, waits_of
from fusionloader.cli.drawn_report.analysis.words import duration, number, percent
from fusionloader.cli.drawn_report.analysis.work import Work, work_of
from fusionloader.cli.drawn_report.chart import Figure
from fusionloader.cli.drawn_report.counter_figure import counters_figure, events_figure
from fusionloader.cli.drawn_report.document import document
from fusionloader.cli.drawn_report.sample_figures import costs_figure, stages_figure
from fusionloader.cli.drawn_report.wait_figures import capacity_figure, wait_figure
from fusionloader.cli.drawn_report.worker_figures import workers_figure
from fusionloader.observe.statistics.processor_use import ProcessorUse
from fusionloader.observe.trace.timeline import Timeline
from fusionloader.system.amounts import counted


def report_page(timeline: Timeline, name: str) -> str:
    """Returns the report of a timeline as HTML that needs nothing else.

    Args:
        timeline: timeline of a training.
        name: what it is called in the report.

    Raises:
        ValueError: it has no step.
        ImportError: a package is missing; the message says which to install.
    """
    if not timeline.steps:
        raise ValueError(
            f"{name} has no step: the trace ended before training asked for a batch, so there is "
            "nothing to report; trace a few hundred steps"
        )
    waits, work = waits_of(timeline.steps), work_of(timeline)
    figures = _figures(timeline, waits, work)
    verdict = verdict_on(waits, work, timeline)
    return document(
        {each.name: asdict(each) for figure in figures for each in figure.charts},
        name=name,
        about=_about(timeline, work),
        verdict=verdict,
        shares=_shares(verdict, waits),
        facts=_facts(waits, work, timeline.meta.processors),
        warnings=tuple(_warnings(timeline)),
        figures=figures,
    )


def _figures(timeline: Timeline, waits: TraceWaits, work: Work) -> tuple[Figure, ...]:
    """Returns the parts of the page; those about samples only where workers are seen."""
    of_samples = bool(work.kinds)
    return (
        *([capacity_figure(waits, work)] if of_samples else []),
        wait_figure(waits),
        workers_figure(timeline, waits, work),
        *([stages_figure(work), costs_figure(timeline)] if of_samples else []),
        counters_figure(timeline, work),
        events_figure(timeline, work),
    )


def _about(timeline: Timeline, work: Work) -> str:
    meta = timeline.meta
    began = datetime.fromtimestamp((work.begin_ns + meta.unix_ns) / 1e9, timezone.utc)
    parts = [
        f"{began:%Y-%m-%d %H:%M} UTC",
        duration(work.seconds),
        counted(len(timeline.steps), "step"),
        f"rank {meta.rank}",
    ]
    if meta.batch_size is not None:
        parts.append(f"batches of {meta.batch_size} samples")
    return ", ".join(parts)


def _shares(verdict: TraceVerdict, waits: TraceWaits) -> tuple[tuple[str, str, float], ...]:
    """Returns what training's time went to: a color's name, words, and the share."""
    if verdict.share is None:
        return ()
    shares = [("training", "training itself", 1 - verdict.share)]
    if not waits.knows_workers:
        return (*shares, ("waiting", "waiting", verdict.share))
    for_workers = waits.for_workers_seconds / (waits.waited_seconds + waits.training_seconds)
    return (
        *shares,
        ("waiting", "waiting for workers", for_workers),
        ("delivery", "waiting for delivery", verdict.share - for_workers),
    )


def _facts(waits: TraceWaits, work: Work, use: ProcessorUse | None) -> tuple[tuple[str, str], ...]:
    """Returns a few figures and what they are of."""
    facts = []
    for percents in (50, 95, 99):
        wait = waits.percentile(percents)
        if wait is not None:
            facts.append((duration(wait), f"wait of a step, p{percents}"))
    total = waits.waited_seconds + waits.training_seconds
    if waits.samples and total:
        facts.append((number(waits.samples / total), "samples per second"))
    if work.workers:
        busy = sum(each.busy_share for each in work.workers) / len(work.workers)
        facts.append((percent(busy), f"busy, of {counted(len(work.workers), 'worker')}"))
    if len(waits.startup_seconds):
        longest = float(waits.startup_seconds.max())
        facts.append((duration(longest), "longest from iter() to a first batch"))
    if use is not None and use.worker_share is not None:
        facts.append((percent(use.worker_share), "of a core, for a worker that could run"))
    return tuple(facts)


def _warnings(timeline: Timeline) -> Iterator[str]:
    meta = timeline.meta
    if meta.lost:
        yield (
            f"{counted(meta.lost, 'span')} of workers had no room before training read the others, "
            "of which busy shares and costs are."
        )
    yield from meta.notes

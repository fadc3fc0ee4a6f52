"""What limits a training, and what would reach the speed that it has on data in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fusionloader.cli.analysis.findings import LoaderFindings
from fusionloader.cli.analysis.phases import Phase
from fusionloader.cli.analysis.what_if.job import JobModel
from fusionloader.cli.analysis.what_if.questions import Question
from fusionloader.observe.statistics.processor_use import CoreShortage
from fusionloader.observe.statistics.stages import costliest_stage
from fusionloader.observe.statistics.worker_limit import MOSTLY

_NOTICED = 0.05  # of the time, from which on waiting is worth a word
_REACHED = 0.97  # of the rate on data in memory
_HELPS = 1.05  # times today's rate, from which on a remedy is worth a word
_MOST_WORKERS = 64
_MOST_OF_IT = 0.5  # of the slowest rank's waiting, which no other rank's comes near
_SHARES = (0.25, 0.5, 0.75, 1.0)
_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change, and what it is predicted to bring.

    Attributes:
        change: the change in words, or as an argument of the loader.
        rate: samples per second.
        reaches: whether training then hardly waits.
    """

    change: str
    rate: float
    reaches: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What limits a training.

    Attributes:
        wait_share: fraction of its time that it waits, 0 to 1; ``None`` if not measured.
        limit: ``"training"``, ``"reading"`` or ``"preparation"``; ``"processors"`` where other
            processes or a CPU quota keep workers from running; ``"unknown"`` where too little was
            measured.
        stage: the stage on which workers spend most; empty where that is not known.
        out_of_cores: whether the workers and training have no core left.
        remedies: the changes that help, the best first.
        sentences: all of it in words.
    """

    wait_share: float | None
    limit: str
    stage: str
    out_of_cores: bool
    remedies: tuple[Remedy, ...]
    sentences: tuple[str, ...]


def verdict_on(findings: LoaderFindings) -> Verdict:
    """Returns the verdict on what was measured of a loader."""
    today = findings.phases.get(Phase.TODAY)
    waits = today.wait_share if today else None
    model = JobModel.of(findings)
    limit = _limit(findings)
    stages = findings.service.warm.stages if findings.service else ()
    stage, what = "", ""
    if limit == "preparation" and stages:
        costliest, share = costliest_stage(stages)
        stage, what = costliest.name, f" ({costliest.name}: {share:.0%} of the workers' time)"
        if stage == "read":  # from storage that is slow with warm files, too: nothing caches them
            limit = "reading"
    elif limit == "preparation":
        what = _of_unseen_workers(findings)
    shortage = _shortage(findings)
    if limit == "processors" and shortage is not None:
        what = shortage.sentence
    if model is None:
        opening = (*_opening(findings, limit, what), *_slow_ranks(findings))
        return Verdict(waits, limit, stage, False, (), opening)
    out = limit == "preparation" and _out_of_cores(model)
    helps = limit in ("preparation", "reading")
    remedies = tuple(_remedies(model, findings)) if helps else ()
    sentences = [*_opening(findings, limit, what), *_slow_ranks(findings)]
    if limit == "processors" and shortage is not None:
        sentences.append(shortage.remedy.replace("`", ""))
    if out:
        sentences.append(
            f"The {model.shape.cores:g} cores are busy: more workers would not help here."
        )
    if helps:
        sentences += _advice(remedies)
        sentences += _file_cache(findings, model) if limit == "reading" and not stage else []
    return Verdict(waits, limit, stage, out, remedies, tuple(sentences))


def _limit(findings: LoaderFindings) -> str:
    """Says what costs most, by the differences between the phases."""
    phases = findings.phases
    if Phase.TODAY not in phases or Phase.MEMORY not in phases:
        return "unknown"
    per_sample = {phase: 1 / result.rate for phase, result in phases.items()}
    memory, today = per_sample[Phase.MEMORY], per_sample[Phase.TODAY]
    if phases[Phase.TODAY].wait_share < _NOTICED:
        return "training"
    if _shortage(findings) is not None:
        return "processors"
    warm = min(per_sample.get(Phase.WARM, today), today)
    return "preparation" if warm - memory >= today - warm else "reading"


def _shortage(findings: LoaderFindings) -> CoreShortage | None:
    """Returns what keeps workers from running, if it is not this training by itself."""
    today = findings.phases.get(Phase.TODAY)
    use = today.processors if today else None
    shortage = use.shortage() if use else None
    return None if shortage is None or shortage.cause == "own" else shortage


def _of_unseen_workers(findings: LoaderFindings) -> str:
    """Returns in parentheses what torch's workers do, which count nothing themselves."""
    use = findings.phases[Phase.TODAY].processors
    if use is None or use.blocked_share is None:
        return ""
    if use.blocked_share >= MOSTLY:
        return f" (workers wait {use.blocked_share:.0%} of their time for storage or a lock)"
    return f" (workers compute {1 - use.blocked_share:.0%} of their time)"


def _opening(findings: LoaderFindings, limit: str, what: str) -> Iterator[str]:
    phases = findings.phases
    if Phase.TODAY not in phases:
        return
    share = f"{phases[Phase.TODAY].wait_share:.0%} of its time for data"
    if limit == "unknown":
        yield f"Training waits {share}."
        yield "Too few steps were measured to say why."
    elif limit == "training":
        yield (
            f"The training step is the limit: training waits {share}, and a faster loader would "
            "change nothing."
        )
    else:
        causes = {
            "reading": f"reading files limits it{what}",
            "preparation": f"preparing samples limits it{what}",
            "processors": what,
        }
        yield f"Training waits {share}: {causes[limit]}."
        if limit == "reading" and not what:
            yield "With files in memory it is faster."


def _slow_ranks(findings: LoaderFindings) -> Iterator[str]:
    """Names the rank whose data the others wait for, if it is one."""
    today, ranks = findings.phases.get(Phase.TODAY), findings.ranks
    if today is None or len(ranks) < 2 or today.wait_share < _NOTICED:
        return
    shares = [each.waited(Phase.TODAY) / today.waited for each in ranks]
    slowest = max(range(len(ranks)), key=shares.__getitem__)
    others = max(share for rank, share in enumerate(shares) if rank != slowest)
    if others < _MOST_OF_IT * shares[slowest]:
        yield (
            f"The other ranks wait for rank {slowest}: it waits for its own data in "
            f"{shares[slowest]:.0%} of that time, the others for theirs in at most {others:.0%}."
        )


def _out_of_cores(model: JobModel) -> bool:
    today = model.predict(Question()).rate
    more = model.predict(Question(workers=max(1, 2 * model.shape.workers))).rate
    return more < today * _HELPS


def _remedies(model: JobModel, findings: LoaderFindings) -> Iterator[Remedy]:
    """Yields what helps of all that can be changed, the fastest first.

    It has to be faster than what is predicted for today, and than what was measured.
    """
    today = max(model.predict(Question()).rate, findings.phases[Phase.TODAY].rate)
    target = _REACHED * model.training_rate
    found = [*_workers(model, target), *_caches(model, target), *_others(model)]
    helpful = [(each, rate) for each, rate in found if rate >= _HELPS * today]
    for change, rate in sorted(helpful, key=lambda pair: -pair[1]):
        yield Remedy(change, rate, rate >= target)


def _workers(model: JobModel, target: float) -> Iterator[tuple[str, float]]:
    """Yields the least number of workers that reaches the target, or that is best."""
    best = (0, 0.0)
    for workers in _more_than(model.shape.workers):
        rate = model.predict(Question(workers=workers)).rate
        if rate > best[1] * 1.01:
            best = (workers, rate)
        if rate >= target or rate < best[1]:
            break
    if best[0]:
        yield f"num_workers={best[0]}", best[1]


def _more_than(workers: int) -> list[int]:
    close = [workers + more for more in (1, 2, 3, 4, 6, 8)]
    return [*close, *(w for w in (12, 16, 24, 32, 48, _MOST_WORKERS) if w > close[-1])]


def _caches(model: JobModel, target: float) -> Iterator[tuple[str, float]]:
    kept, samples = model.service.cached, model.shape.samples
    if kept is None or not samples or model.shape.cache_bytes:
        return
    for share in _SHARES:
        rate = model.predict(Question(cache=share)).rate
        if rate >= target or share == _SHARES[-1]:
            gib = share * samples * kept.stored_bytes / _GIB
            yield f'cache=DecodedCache("{max(0.1, gib):.1f}GiB") ({share:.0%} of the images)', rate
            return


def _others(model: JobModel) -> Iterator[tuple[str, float]]:
    if not model.shape.jpeg_index and (indexed := model.with_index()) is not None:
        yield 'jpeg_index="auto"', indexed.predict(Question()).rate
    if (fused := model.fused()) is not None:
        yield "FusionLoader in DataLoader's place", fused.predict(Question()).rate


def _advice(remedies: tuple[Remedy, ...]) -> Iterator[str]:
    reach = [each for each in remedies if each.reaches]
    if reach:
        names = ", or ".join(each.change for each in reach)
        verb = "reaches" if len(reach) == 1 else "reach"
        yield f"{names} {verb} the speed of training on data in memory."
    elif remedies:
        best = remedies[0]
        yield f"{best.change} helps most: {best.rate:,.0f} samples/s."
    else:
        yield "Nothing that could be measured here helps."


def _file_cache(findings: LoaderFindings, model: JobModel) -> Iterator[str]:
    """Says how many of the files the page cache has to hold, by the paper's equation (2)."""
    reads, warm = model.service.reads, findings.phases.get(Phase.WARM)
    if reads is None or reads.storage is None or warm is None or not model.shape.samples:
        return
    cached = reads.memory * max(1, model.shape.workers) / reads.mean_bytes
    of_a_rank = warm.rate / max(1, len(findings.ranks))
    share = share_for(of_a_rank, cached, reads.storage / reads.mean_bytes)
    if share:
        gib = share * model.shape.samples * reads.mean_bytes / _GIB
        yield (
            f"Reading keeps up if {share:.0%} of the files ({gib:.1f} GiB) stay in memory, or from "
            f"storage with {warm.rate * reads.mean_bytes / 1e6:,.0f} MB/s."
        )


def share_for(rate: float, cached: float, uncached: float) -> float | None:
    """Returns the least cached share of samples that reaches a rate; ``None`` if no cache does.

    Mohan et al., PVLDB 14(5), 2021, equation (2), for the share. Rates are samples per second.
    """
    if uncached >= rate:
        return 0.0
    if cached < rate:
        return None
    return (1 / uncached - 1 / rate) / (1 / uncached - 1 / cached)

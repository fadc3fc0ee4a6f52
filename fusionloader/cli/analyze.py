"""The analyze command: what limits a training, and what would help."""

from __future__ import annotations

import argparse
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from fusionloader.cli.analysis import scripts
from fusionloader.cli.analysis.errors import AnalysisError
from fusionloader.cli.analysis.files import FileCacheLimit
from fusionloader.cli.analysis.findings import LoaderFindings
from fusionloader.cli.analysis.phases import Phase
from fusionloader.cli.analysis.ranks import AnalyzedRanks
from fusionloader.cli.analysis.run import Findings, analyze
from fusionloader.cli.analysis.verdict import Verdict, verdict_on
from fusionloader.cli.analysis.what_if.job import JobModel
from fusionloader.cli.analysis.what_if.model import Prediction
from fusionloader.cli.analysis.what_if.questions import AXES, Question, questions
from fusionloader.cli.environment import JsonObject, provenance
from fusionloader.cli.measure.report import announce, table, write_json

_SECONDS = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    what = parser.add_argument_group("what is analyzed")
    what.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        help="MODULE [ARGUMENTS]: run a module, as python -m does",
    )
    what.add_argument("--loader", metavar="MODULE:FACTORY", help="FACTORY() returns a loader")
    what.add_argument("--step", metavar="MODULE:FUNCTION", help="FUNCTION(batch) trains a step")
    parser.add_argument("--json", type=Path, help="write everything to this file")
    parser.add_argument(
        "--seconds", type=float, default=_SECONDS, help=f"of each measurement ({_SECONDS:g})"
    )
    parser.add_argument(
        "--what-if",
        nargs=1,
        metavar="AXIS=VALUES",
        help="predict epochs: workers=4,8 cache=0,50%% storage=100MB/s,memory "
        "file_cache=30GiB,50%% gpu=2x, before the script",
    )
    parser.add_argument(
        "--file-cache",
        default="0",
        metavar="LIMIT",
        help="of the dataset's files, what stays in memory while files are read from storage: "
        "30GiB or 35%% (0)",
    )
    parser.add_argument(
        "training",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT [ARGUMENTS]",
        help="the script that trains, behind all options, and its arguments",
    )


def run(options: argparse.Namespace) -> int:
    """Measures and prints the verdict; returns the exit status."""
    try:
        asked = [Question(), *questions(texts)] if (texts := _asked(options)) else []
        name, training = _training(options)
        if not options.seconds > 0:
            raise AnalysisError(f"--seconds should be above 0, not {options.seconds:g}")
        file_cache = _file_cache(options.file_cache)
        ranks = AnalyzedRanks.of(os.environ)
        first = ranks.rank == 0
        _check_writable(options.json if first else None)
        started = time.perf_counter()
        told = announce if first else lambda text: None
        findings = analyze(training, name, options.seconds, told, file_cache, ranks)
        if not first:
            return 0
        return _report(options, name, findings, asked, time.perf_counter() - started)
    except AnalysisError as error:
        print(f"fusionloader analyze: {error}", file=sys.stderr)
        return 1


def _file_cache(text: str) -> FileCacheLimit:
    try:
        return FileCacheLimit.parse(text)
    except ValueError as error:
        raise AnalysisError(f"--file-cache is written as 30GiB or 35%, not {text}") from error


def _check_writable(path: Path | None) -> None:
    """Finds out before a minute of measuring."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise AnalysisError(f"--json {path} cannot be written: {error}") from error


def _asked(options: argparse.Namespace) -> list[str]:
    """Takes the questions from before the script, which argparse cannot tell apart."""
    if options.what_if is None:
        return []
    asked: list[str] = list(options.what_if)
    while options.training and options.training[0].partition("=")[0] in AXES:
        asked.append(options.training.pop(0))
    if options.training[:1] == ["-m"]:
        options.module, options.training = options.training[1:], []
    if options.training and options.training[0].startswith("--"):
        raise AnalysisError(f"{options.training[0]} comes too late: --what-if is the last option")
    return asked


def _training(options: argparse.Namespace) -> tuple[str, scripts.Training]:
    """Returns the name of what is analyzed, and what runs it."""
    loader, step, rest = options.loader, options.step, options.training
    if (loader is None) != (step is None):
        raise AnalysisError("--loader and --step go together")
    if loader is not None:
        if rest or options.module:
            raise AnalysisError("give a script, or --loader and --step, not both")
        return loader, scripts.loop(loader, step)
    if options.module:
        name, *arguments = options.module
        return name, scripts.module(name, arguments)
    if not rest:
        raise AnalysisError("give a script that trains, or --loader and --step")
    return Path(rest[0]).name, scripts.script(rest[0], rest[1:])


# ---- the report --------------------------------------------------------------------------------


def _report(
    options: argparse.Namespace,
    name: str,
    findings: Findings,
    asked: list[Question],
    seconds: float,
) -> int:
    stopped = "stopped" if findings.stopped else "ended by itself"
    runs = "" if findings.runs == 1 else f", run {findings.runs} times"
    count = max((len(each.ranks) for each in findings.loaders), default=0)
    of_ranks = f"{count} ranks; " if count else ""
    print(f"\nanalysis of {name} ({of_ranks}{stopped}{runs}; {seconds:.0f} s)")
    for place in findings.apart:
        print(f"\nthe loader made at {place} was left alone: not all ranks iterate it")
    entries = []
    for each in findings.loaders:
        verdict = verdict_on(each)
        predictions, unanswered = _answers(JobModel.of(each), asked)
        print(f"\n{each.title}\n{_text(each, verdict, predictions)}")
        for why in unanswered:
            print(f"not predicted, {why}")
        entries.append({**_entry(each, verdict, predictions), "not_predicted": unanswered})
    write_json(
        {
            **provenance(),
            "training": name,
            "seconds": seconds,
            "runs": findings.runs,
            "apart": findings.apart,
            "loaders": entries,
        },
        options.json,
    )
    return 0


def _answers(model: JobModel | None, asked: list[Question]) -> tuple[list[Prediction], list[str]]:
    """Returns predictions, and why others cannot be made."""
    if not asked:
        return [], []
    if model is None:
        return [], ["the script ended before the loader was measured"]
    reasons = {question: model.why_not(question) for question in asked}
    predictions = [model.predict(question) for question, why in reasons.items() if not why]
    return predictions, [why for why in dict.fromkeys(reasons.values()) if why]


def _text(findings: LoaderFindings, verdict: Verdict, predictions: list[Prediction]) -> str:
    parts = [" ".join(verdict.sentences), _phases(findings), _ranks(findings), _stages(findings)]
    if verdict.remedies:
        rows = [
            (each.change, f"{each.rate:,.0f}", "yes" if each.reaches else "no")
            for each in verdict.remedies
        ]
        parts.append(table(("change", "samples/s", "enough"), rows))
    if predictions:
        header = ("what if", "epoch s", "samples/s", "training waits")
        parts.append(table(header, [_predicted(each) for each in predictions]))
    return "\n\n".join(part for part in parts if part)


def _phases(findings: LoaderFindings) -> str:
    cached = f", {findings.cached_share:.0%} cached" if findings.cached_share else ""
    rows = [
        (
            phase.value + (cached if phase is Phase.COLD else ""),
            f"{result.rate:,.0f}",
            f"{result.wait_share:.0%}",
            str(result.steps),
        )
        for phase in Phase
        if (result := findings.phases.get(phase)) is not None
    ]
    lines = [table(("phase", "samples/s", "training waits", "steps"), rows)]
    lines += [f"{phase.value}: not measured, {why}" for phase, why in findings.skipped.items()]
    return "\n".join(lines)


def _ranks(findings: LoaderFindings) -> str:
    """Returns how long each rank waits as it runs, for its own data and for that of others."""
    today = findings.phases.get(Phase.TODAY)
    if today is None or not findings.ranks:
        return ""
    rows = []
    for rank, each in enumerate(findings.ranks):
        own = each.waited(Phase.TODAY)
        shares = [seconds / today.seconds for seconds in (own, max(0.0, today.waited - own))]
        rows.append((str(rank), *(f"{share:.0%}" for share in shares)))
    return table(("rank", "waits for its data", "for data of other ranks"), rows)


def _stages(findings: LoaderFindings) -> str:
    service = findings.service
    if service is None:
        return ""
    rows = [
        (stage.name, f"{stage.capacity:,.0f}", f"{stage.seconds / stage.samples * 1e3:.3f}")
        for stage in service.warm.stages
    ]
    rows.append(("all", f"{service.warm.rate:,.0f}", f"{service.warm.service_seconds * 1e3:.3f}"))
    workers = f"capacity of {service.warm.workers} workers"
    lines = [table((workers, "samples/s", "ms/sample"), rows)]
    if service.reads is not None:
        reads = service.reads
        storage = f"{reads.storage / 1e6:,.0f} MB/s" if reads.storage else f"unknown: {reads.note}"
        lines.append(
            f"files: {reads.mean_bytes / 1e3:,.0f} KB on average; {reads.memory / 1e6:,.0f} MB/s "
            f"from memory, from storage {storage}"
        )
    return "\n".join(lines)


def _predicted(prediction: Prediction) -> tuple[str, str, str, str]:
    seconds = "-" if prediction.seconds is None else f"{prediction.seconds:,.1f}"
    return (
        setting(prediction.question),
        seconds,
        f"{prediction.rate:,.0f}",
        f"{prediction.wait_share:.0%}",
    )


def setting(question: Question) -> str:
    """Returns a question as it is asked."""
    parts = [
        None if question.workers is None else f"workers={question.workers}",
        None if question.cache is None else f"cache={question.cache:.0%}",
        None if question.storage is None else f"storage={_rate(question.storage)}",
        None if question.file_cache is None else f"file_cache={question.file_cache}",
        None if question.gpu == 1 else f"gpu={question.gpu:g}x",
    ]
    return " ".join(part for part in parts if part) or "as it is"


def _rate(storage: float) -> str:
    return f"{storage / 1e6:g}MB/s" if storage else "memory"


def _entry(findings: LoaderFindings, verdict: Verdict, predictions: list[Prediction]) -> JsonObject:
    return {
        "place": findings.place,
        "kind": findings.kind,
        "phases": _phase_entries(findings),
        "file_cache_share": findings.cached_share,
        "ranks": [{"phases": _phase_entries(each)} for each in findings.ranks],
        "not_measured": {phase.name.lower(): why for phase, why in findings.skipped.items()},
        "loader": None if findings.shape is None else asdict(findings.shape),
        "service": None if findings.service is None else asdict(findings.service),
        "verdict": asdict(verdict),
        "what_if": [asdict(each) for each in predictions],
    }


def _phase_entries(findings: LoaderFindings) -> JsonObject:
    return {
        phase.name.lower(): {
            **asdict(result),
            "samples_per_second": result.rate,
            "wait_share": result.wait_share,
        }
        for phase, result in findings.phases.items()
    }

"""Runs a training until all phases of its loaders are measured."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass

from fusionloader.cli.analysis.errors import AnalysisDone, AnalysisError
from fusionloader.cli.analysis.files import FileCacheLimit
from fusionloader.cli.analysis.findings import LoaderFindings, LoaderShape, of_job, partial
from fusionloader.cli.analysis.ranks import AnalyzedRanks
from fusionloader.cli.analysis.scripts import Training
from fusionloader.cli.analysis.service import measure_service
from fusionloader.cli.analysis.session import Session
from fusionloader.cli.analysis.watched import WatchedLoader

_MOST_RUNS = 10


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found of a training.

    Attributes:
        loaders: those that training was done on, in the order of their first batch.
        runs: how often the script was run.
        stopped: whether it was stopped before its end.
        apart: lines that make loaders which not all ranks iterate.
    """

    loaders: tuple[LoaderFindings, ...]
    runs: int
    stopped: bool
    apart: tuple[str, ...] = ()


def analyze(
    training: Training,
    name: str,
    seconds: float,
    announce: Callable[[str], None] = lambda text: None,
    file_cache: FileCacheLimit = FileCacheLimit(),  # noqa: B008 (frozen)
    ranks: AnalyzedRanks | None = None,
) -> Findings:
    """Measures a training.

    A training of one rank that ends before all is measured is run again, in this process.

    Args:
        training: runs it, from its start.
        name: its name, for messages.
        seconds: duration of each measurement.
        announce: is told what is measured now.
        file_cache: what the file cache holds of the files, in ``Phase.COLD``.
        ranks: ranks of the training, all of which call this; by default this process alone.

    Raises:
        AnalysisError: nothing could be measured.
    """
    analysis = _Analysis(name, seconds, announce, file_cache, ranks or AnalyzedRanks())
    return analysis.run(training)


class _Analysis:
    def __init__(
        self,
        name: str,
        seconds: float,
        announce: Callable[[str], None],
        file_cache: FileCacheLimit,
        ranks: AnalyzedRanks,
    ) -> None:
        self._name, self._seconds, self._announce = name, seconds, announce
        self._ranks = ranks
        self._session = Session(seconds, self._measure, announce, file_cache, ranks)
        self._found: dict[str, LoaderFindings] = {}

    def run(self, training: Training) -> Findings:
        session, runs, more, stopped, ending = self._session, 0, True, False, ""
        # Ranks meet in a process group, which the script cannot make twice.
        most = _MOST_RUNS if self._ranks.count == 1 else 1
        while more and not stopped and runs < most:
            counted = session.counted
            stopped, ending = self._run_once(training)
            more, runs = session.counted > counted, runs + 1
        loaders = [
            self._found.get(place) or partial(progress)
            for place, progress in session.progress.items()
            if any(window.result for window in progress.windows.values())
        ]
        if not loaders:
            raise AnalysisError(self._why_nothing(ending))
        return Findings(tuple(self._of_job(loaders)), runs, stopped, tuple(self._ranks.apart))

    def _of_job(self, loaders: list[LoaderFindings]) -> list[LoaderFindings]:
        """Puts together what all ranks have found."""
        if self._ranks.count == 1:
            return loaders
        found = self._ranks.meet("findings", {each.place: each for each in loaders})
        progress = self._session.progress
        common = [place for place in found[0] if all(place in each for each in found)]
        return [of_job([each[place] for each in found], progress[place].job) for place in common]

    def _run_once(self, training: Training) -> tuple[bool, str]:
        """Returns whether the script was stopped, and how it ended otherwise."""
        session = self._session
        try:
            with session.watching():
                training()
        except AnalysisDone:
            return True, ""
        except SystemExit as error:
            if not session.here:
                raise
            return False, f"sys.exit({'' if error.code is None else repr(error.code)})"
        except AnalysisError:
            raise
        except Exception as error:
            if not session.here:
                raise
            raise AnalysisError(self._raised(error)) from error
        if not session.here:
            raise SystemExit  # a process that the script forked has come to the script's end
        return False, "its last line"

    def _measure(self, watched: WatchedLoader) -> None:
        progress, loader = watched.progress, watched.loader
        self._announce(f"{progress.place}: its samples, beside training")
        size = watched.replayed_samples or loader.batch_size or 1
        service = measure_service(
            loader, watched.mini_batches, watched.parts, self._seconds, self._ranks
        )
        self._found[progress.place] = LoaderFindings(
            progress.place,
            progress.kind,
            progress.results,
            progress.skipped,
            LoaderShape.of(loader, size, self._ranks),
            service,
            progress.cached_share,
        )

    def _raised(self, error: Exception) -> str:
        lines = traceback.format_exception(error)
        steps = self._session.steps
        return (
            f"{''.join(lines)}{self._name} raised {type(error).__name__} after {steps} steps of "
            "training: it has to run by itself before it can be analyzed"
        )

    def _why_nothing(self, ending: str) -> str:
        session, name = self._session, self._name
        if session.used_in_child:
            return (
                f"{name} iterates its loaders in a process that it forks, which is not analyzed: "
                "run the training in the process that is started (ranks are started by torchrun)"
            )
        came = f"{name} came to {ending}" if ending else name
        if not session.places:
            return (
                f"{came} without making a DataLoader or a FusionLoader in the process that was "
                f"started"
            )
        places = ", ".join(session.places)
        if not session.steps:
            return (
                f"{came} before a second batch was taken of its loaders ({places}): a step of "
                f"training is what happens between two batches"
            )
        return (
            f"{came} after {session.steps} steps of training on its loaders ({places}), too few "
            "to measure: let it train longer"
        )

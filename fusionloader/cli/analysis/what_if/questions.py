"""What-if questions: ``workers=4,8 cache=0,50% file_cache=30GiB gpu=2x``, read and checked."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fusionloader.cli.analysis.errors import AnalysisError
from fusionloader.cli.analysis.files import FileCacheLimit
from fusionloader.system.amounts import parse_bytes

_MOST = 200  # combinations; each is a simulation


@dataclass(frozen=True, slots=True)
class Question:
    """One setting to predict; ``None`` leaves things as they are.

    Attributes:
        workers: worker processes.
        cache: share of the samples whose decoded images are kept.
        storage: bytes a second that all workers read; 0: all files in the file cache.
        gpu: speed of training on data in memory, 1 being today's.
        file_cache: files that the file cache holds; ``None`` for none of them if ``storage`` is
            given, and otherwise for as many as the machine's memory holds.
    """

    workers: int | None = None
    cache: float | None = None
    storage: float | None = None
    gpu: float = 1.0
    file_cache: FileCacheLimit | None = None


def questions(texts: Sequence[str]) -> list[Question]:
    """Returns all combinations of what is asked for.

    Args:
        texts: like ``"workers=4,8"``, each axis once.

    Raises:
        AnalysisError: one of them is not understood, or there are too many.
    """
    axes: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if name not in _AXES or not equals:
            raise AnalysisError(
                f'--what-if does not understand "{text}": there are workers=4,8 cache=0,50% '
                "storage=100MB/s,memory file_cache=30GiB,50% gpu=2x"
            )
        if name in axes:
            raise AnalysisError(f"--what-if has {name}= twice: give all its values at once")
        parse, expected = _AXES[name]
        # A unit behind the last value is that of all: cache=0,25,50%.
        axes[name] = [_parsed(parse, each, name, expected) for each in values.split(",")]
    combinations = list(itertools.product(*axes.values()))
    if len(combinations) > _MOST:
        raise AnalysisError(
            f"--what-if asks for {len(combinations)} combinations, more than {_MOST}: fewer values"
        )
    names = list(axes)
    return [replace(Question(), **dict(zip(names, each, strict=True))) for each in combinations]


def _parsed(parse: Callable[[str], Any], text: str, name: str, expected: str) -> Any:
    try:
        return parse(text.strip())
    except ValueError:
        raise AnalysisError(
            f"--what-if does not understand {name}={text}: {name} is {expected}"
        ) from None


def _workers(text: str) -> int:
    count = int(text)
    if not 1 <= count <= 1024:
        raise ValueError
    return count


def _share(text: str) -> float:
    share = float(text.removesuffix("%")) / 100
    if not 0 <= share <= 1:
        raise ValueError
    return share


def _rate(text: str) -> float:
    return 0.0 if text == "memory" else float(parse_bytes(text.removesuffix("/s")))


def _speed(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)x?", text)
    if not found or not float(found[1]) > 0:
        raise ValueError
    return float(found[1])


_AXES: dict[str, tuple[Callable[[str], Any], str]] = {
    "workers": (_workers, "a number of processes from 1 to 1024"),
    "cache": (_share, "a percentage of the samples, from 0 to 100%"),
    "storage": (_rate, "bytes a second, as 100MB/s, or memory"),
    "file_cache": (FileCacheLimit.parse, "bytes of files, as 30GiB, or a percentage of them"),
    "gpu": (_speed, "a factor of speed, as 2x"),
}
AXES = frozenset(_AXES)

"""All checks, in the order in which they are shown."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from fusionloader.cli.doctor.check import Check

# Loaded one by one: what is broken in one of them is to be a line, not the end of all.
_SUBJECTS = ("packages", "cores", "limits", "kernels", "devices", "device_memory", "jpeg_engine")


class RemoteTargets(NamedTuple):
    """Remote workers to be tried: their addresses, none for those that Ray starts."""

    addresses: list[str]
    token_file: str | None


def examine(data: Path | None, remote: RemoteTargets | None, *, measure: bool) -> Iterator[Check]:
    """Yields all checks.

    Args:
        data: a folder whose reading is measured, too.
        remote: workers that are asked for something, too.
        measure: whether measurements are made, which take seconds each.
    """
    for subject in _SUBJECTS:
        yield from _guarded(subject, "checks")
    if measure:
        yield from _guarded("decoding", "checks")
        if data is not None:
            yield from _guarded("storage", "checks", data)
    if remote is not None:
        yield from _guarded("remote_workers", "checks", *remote)


def _guarded(subject: str, function: str, *arguments: object) -> Iterator[Check]:
    """Yields a subject's checks, and a failure where it cannot be looked at."""
    try:
        module = importlib.import_module(f"fusionloader.cli.doctor.{subject}")
        checks: Callable[..., Iterator[Check]] = getattr(module, function)
        yield from checks(*arguments)
    except Exception as error:  # whatever is broken here is what the doctor is asked for
        value = f"cannot be looked at: {type(error).__name__}: {error}"
        yield Check(subject.replace("_", " "), value, "fail", _REPORT)


_REPORT = "mend what fails above; if nothing does, please report it with this output"

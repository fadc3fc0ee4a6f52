"""The checks as text for people, and as JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from fusionloader.cli.doctor.check import Check

_NAME_WIDTH = 22


def line_of(check: Check) -> str:
    """Returns a check as a line, its remedy in a second one."""
    line = f"{check.state:<5} {check.name:<{_NAME_WIDTH}} {check.value}"
    return f"{line}\n      -> {check.remedy}" if check.remedy else line


def summary(checks: Sequence[Check]) -> str:
    """Returns how many are not ok, in words."""
    counts = Counter(check.state for check in checks)
    if counts["ok"] == len(checks):
        return "no problems found"
    return f"{counts['fail']} of {len(checks)} checks failed, {counts['warn']} warn"


def as_json(checks: Sequence[Check]) -> str:
    """Returns a list with an object for each check."""
    return json.dumps([asdict(check) for check in checks], indent=2)


def exit_status(checks: Sequence[Check]) -> int:
    """Returns 1 if one has failed, else 0: warnings are no failures."""
    return int(any(check.state == "fail" for check in checks))

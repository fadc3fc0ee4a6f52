"""``@pytest.mark.few(n)``: the suite tries n of a test's cases, and ``make matrix`` tries them all.

Which ones depends on the test's name alone. Each value of each parameter is in one of them as far
as n suffices. Cases that are marked ``matrix`` themselves do not count.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases: dict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        few = item.get_closest_marker("few") and item.get_closest_marker("matrix") is None
        if few and isinstance(item, pytest.Function):
            cases[item.nodeid.partition("[")[0]].append(item)
    for test, found in cases.items():
        marker = found[0].get_closest_marker("few")
        assert marker is not None
        (most,) = marker.args
        assert hasattr(found[0], "callspec"), f"{test} has one case"
        random.Random(test).shuffle(found)
        for item in set(found).difference(_spread(found, most)):
            item.add_marker(pytest.mark.matrix)


def _spread(cases: list[pytest.Function], most: int) -> list[pytest.Function]:
    """Chooses cases: each next one has the most values that those before it do not have."""
    chosen: list[pytest.Function] = []
    seen: set[tuple[str, int]] = set()
    left = list(cases)
    while left and len(chosen) < most:
        best = max(left, key=lambda case: len(_values(case) - seen))
        if not _values(best) - seen:
            seen.clear()  # all values have been tried: once more
        seen |= _values(best)
        left.remove(best)
        chosen.append(best)
    return chosen


def _values(case: pytest.Function) -> set[tuple[str, int]]:
    """Parameters with their values, which are the same objects in all cases."""
    return {(name, id(value)) for name, value in case.callspec.params.items()}

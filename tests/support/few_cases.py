"""``@pytest.mark.few(n)``: the suite tries n of a test's cases, and ``make matrix`` tries them all.

Which ones is drawn from the test's name: always the same, and of all parameters some of each.
Cases that are marked ``matrix`` themselves do not count.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("few") and item.get_closest_marker("matrix") is None:
            cases[item.nodeid.partition("[")[0]].append(item)
    for test, found in cases.items():
        marker = found[0].get_closest_marker("few")
        assert marker is not None
        (most,) = marker.args
        for item in random.Random(test).sample(found, max(len(found) - most, 0)):
            item.add_marker(pytest.mark.matrix)

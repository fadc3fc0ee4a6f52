"""Fleets on one Ray cluster, which all tests of a process use."""

import contextlib

import pytest
from support.ray_cluster import NODE, running

from fusionloader.options.remote_settings import Remote
from fusionloader.sharing.remote.ray_fleet import RayFleet


@pytest.fixture(scope="session")
def cluster():
    """A head with a CPU, where training is, and a node with two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        with running({NODE: 2}) as found:
            yield found


@pytest.fixture
def start():
    """Starts fleets, and ends them after the test."""
    with contextlib.ExitStack() as fleets:

        def start(loader_cores=1, ranks=None, **settings):
            fleet = RayFleet(Remote(**settings), loader_cores, ranks)
            return fleets.enter_context(contextlib.closing(fleet))

        yield start

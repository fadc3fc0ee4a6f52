"""Groups of jobs."""

import contextlib
import secrets

import pytest
from jobs import Job, coordinators
from support.waiting import wait_until, wait_until_nothing_is_left

from fusionloader.sharing.jobs.address import coordinator_address


@pytest.fixture
def word():
    """A word that no other test has; nothing of its group is left."""
    made = f"test-{secrets.token_hex(6)}"
    yield made
    wait_until(lambda: not coordinators(coordinator_address(made)), "the coordinator has not ended")
    wait_until_nothing_is_left()


@pytest.fixture
def group(word, train_set):
    """Makes jobs that share a word; the others' arguments may differ."""
    with contextlib.ExitStack() as stack:

        def make(count=1, dataset=train_set, **options):
            jobs = [Job(dataset, word, **options) for _ in range(count)]
            for job in jobs:
                stack.callback(job.close)
            return jobs if count > 1 else jobs[0]

        yield make


@pytest.fixture
def long_set(train_set):
    """Batches for long: indices that come again and again."""
    return {"sampler": [index % 40 for index in range(0, 40 * 60, 7)]}

"""Ranks of a machine, from the environment variables that torchrun sets."""

import pytest

from fusionloader.sharing.ranks import discovery as ranks
from fusionloader.sharing.ranks.discovery import ranks_here

JOB = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "a"}


@pytest.fixture(autouse=True)
def warn_again():
    ranks._warn.cache_clear()


def test_torchrun_sets_rank_and_number_of_ranks():
    found = ranks_here(JOB)
    assert (found.rank, found.count) == (1, 4)


def test_ranks_of_a_job_have_one_address_and_other_jobs_another():
    addresses = {ranks_here({**JOB, "LOCAL_RANK": str(rank)}).address for rank in range(4)}
    assert len(addresses) == 1
    for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT"):
        addresses.add(ranks_here({**JOB, name: "other"}).address)
    assert len(addresses) == 5


@pytest.mark.parametrize("alone", [{}, {"LOCAL_WORLD_SIZE": "2"}, {**JOB, "LOCAL_WORLD_SIZE": "1"}])
def test_a_single_process_has_no_ranks(alone, caplog):
    assert ranks_here(alone) is None
    assert not caplog.messages


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"LOCAL_RANK": "0", "MASTER_PORT": "1"}, "LOCAL_WORLD_SIZE is not"),
        ({**JOB, "LOCAL_RANK": "first"}, "no number"),
        ({**JOB, "LOCAL_RANK": "4"}, "LOCAL_RANK is 4 and LOCAL_WORLD_SIZE is 4"),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, "identifies this job"),
    ],
)
def test_incomplete_variables_are_no_rank_and_one_warning(environment, message, caplog):
    for _ in range(2):
        assert ranks_here(environment) is None
    assert len(caplog.messages) == 1 and message in caplog.text

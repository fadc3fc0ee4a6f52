"""Who the ranks of a machine are, from what torchrun tells them."""

import pytest

from fusionloader.ranks import discovery as ranks
from fusionloader.ranks.discovery import ranks_here

JOB = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "TORCHELASTIC_RUN_ID": "a"}


@pytest.fixture(autouse=True)
def forget():
    ranks._warn.cache_clear()


def test_torchrun_tells_a_rank_its_place():
    place = ranks_here(JOB)
    assert (place.rank, place.count) == (1, 4)


def test_ranks_of_a_job_have_one_address_and_other_jobs_another():
    addresses = {ranks_here({**JOB, "LOCAL_RANK": str(rank)}).address for rank in range(4)}
    assert len(addresses) == 1
    for name in ("TORCHELASTIC_RUN_ID", "MASTER_PORT", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT"):
        addresses.add(ranks_here({**JOB, name: "other"}).address)
    assert len(addresses) == 5


@pytest.mark.parametrize("alone", [{}, {"LOCAL_WORLD_SIZE": "2"}, {**JOB, "LOCAL_WORLD_SIZE": "1"}])
def test_one_that_is_alone_has_no_ranks(alone, caplog):
    assert ranks_here(alone) is None
    assert not caplog.messages


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"LOCAL_RANK": "0", "MASTER_PORT": "1"}, "LOCAL_WORLD_SIZE is not"),
        ({**JOB, "LOCAL_RANK": "first"}, "no number"),
        ({**JOB, "LOCAL_RANK": "4"}, "LOCAL_RANK is 4 and LOCAL_WORLD_SIZE is 4"),
        ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}, "tells this job from others"),
    ],
)
def test_half_a_place_is_none_and_is_said_once(environment, message, caplog):
    for _ in range(2):
        assert ranks_here(environment) is None
    assert len(caplog.messages) == 1 and message in caplog.text

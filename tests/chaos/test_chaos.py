"""Short runs of kinds of epochs under faults; `make chaos` runs all kinds for long.

`make kills` sends so many signals to processes of each kind. FUSIONLOADER_SEED says where random
choices begin, and a failure which command does it again.
"""

import pytest
from support.campaigns import KILLS, SEED

from chaos.campaign import campaign, missing
from chaos.registry import KINDS

LIMIT = {"kills": KILLS} if KILLS else {"runs": 1}


def marks_of(kind):
    marks = [] if kind.in_suite else [pytest.mark.matrix]
    # There are no processes to kill where samples are made in the training process.
    return marks if kind.in_training else [*marks, pytest.mark.kills]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=name, marks=marks_of(kind)) for name, kind in KINDS.items()]
)
@pytest.mark.timeout(300 + 10 * KILLS)
def test_whatever_fails_every_batch_is_as_it_should_be(place, kind):
    lacking = missing(kind)
    if lacking:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    steps = 80 if KILLS else 30 if SEED else 10  # other seeds may strike in none of ten
    tally = campaign(place, [kind], SEED, steps, **LIMIT, only_kills=KILLS > 0)[kind.name]
    assert tally.faults.total() > 0 and tally.samples > 0
    assert (tally.lost, tally.doubled, tally.altered, tally.hangs) == (0, 0, 0, 0)

"""A network learns from FusionLoader what it learns from DataLoader."""

import pytest

from benchmarks.same_training import compare, digits_task
from fusionloader import FusionLoader


@pytest.mark.studies
@pytest.mark.timeout(300)
def test_digits_are_learnt_as_well_within_the_spread_of_three_seeds():
    compared = compare(digits_task(1500, epochs=5), FusionLoader, seeds=3, workers=1)
    assert min(compared.theirs) > 0.7  # chance is 0.1
    assert abs(compared.difference) <= max(compared.spread, 0.005), compared

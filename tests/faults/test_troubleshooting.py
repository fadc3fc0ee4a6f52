"""What the documentation says of faults is what FusionLoader says of them."""

import shutil

import pytest
from support.troubleshooting import NO_MORE_PROCESSES, OUT_OF_MEMORY, documented, matches
from troubles import FAULTS


def test_all_faults_are_documented():
    elsewhere = {OUT_OF_MEMORY, NO_MORE_PROCESSES}  # by test_memory_limits.py, places/
    assert set(documented()) == set(FAULTS) | elsewhere


@pytest.mark.parametrize("pattern", FAULTS, ids=lambda pattern: FAULTS[pattern].__name__)
@pytest.mark.few(2)
def test_a_fault_is_reported_as_documented(pattern, image_folder, tmp_path):
    shutil.copytree(image_folder, tmp_path / "images")
    with pytest.raises(Exception) as caught:  # noqa: PT011
        FAULTS[pattern](tmp_path)
    assert matches(pattern, str(caught.value)), str(caught.value)

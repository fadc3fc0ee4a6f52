"""What the doctor says of the speed of a core."""

import re
from pathlib import Path

import pytest

from fusionloader.cli.doctor import decoding

PAGE = Path(__file__).parents[3] / "docs" / "observe/doctor.md"


@pytest.mark.parametrize(("share", "state"), [(1.2, "ok"), (0.6, "ok"), (0.4, "warn")])
def test_far_below_the_table_is_a_warning(share, state, monkeypatch):
    monkeypatch.setattr(decoding, "simd_level", lambda: "AVX2")
    expected = decoding.EXPECTED["AVX2"]
    monkeypatch.setattr(decoding, "images_per_second", lambda: share * expected)
    (check,) = decoding.checks()
    assert check.state == state
    assert f"{share * expected:,.0f} images/s a core; with AVX2 about {expected:,}" in check.value


def test_where_nothing_was_measured_nothing_is_expected(monkeypatch):
    monkeypatch.setattr(decoding, "simd_level", lambda: "NEON")
    monkeypatch.setattr(decoding, "images_per_second", lambda: 10.0)
    (check,) = decoding.checks()
    assert check.state == "ok" and "none are known for NEON" in check.value


def test_photos_are_decoded_to_find_out(monkeypatch):
    monkeypatch.setattr(decoding, "_PASSES", 1)
    monkeypatch.setattr(decoding, "_PER_PASS", 1)
    decoded = []
    timed_pass = decoding._timed_pass

    def counted(executor, photos, out, progress):
        seconds = timed_pass(executor, photos, out, progress)
        decoded.append((len(photos), any(out)))
        return seconds

    monkeypatch.setattr(decoding, "_timed_pass", counted)
    assert decoding.images_per_second.__wrapped__() > 0
    assert decoded == [(10, True)]


def test_the_table_of_the_page_is_the_one_that_is_used():
    rows = re.findall(r"^\| ([^|`]+) \| ([\d,]+) \|", PAGE.read_text(), re.MULTILINE)
    table = {name: int(rate.replace(",", "")) for names, rate in rows for name in names.split("; ")}
    assert table == decoding.EXPECTED

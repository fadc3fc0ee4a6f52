"""The campaigns: what is kept of a run, and the page that shows it."""

import time

import pytest
from support.waiting import PATIENCE

from benchmarks import campaigns
from benchmarks.campaigns import ALL, PAGE, RECORD, Campaign, last_words, page, read


def test_the_page_is_the_one_that_the_record_makes():
    assert PAGE.read_text() == page(read(RECORD)), "python -m benchmarks.campaigns --page"


def test_each_campaign_is_a_target_with_words_and_no_run_is_of_another():
    assert all(each.tries or campaigns.tries(each.name) for each in ALL)
    assert {found["campaign"] for found in read(RECORD)} <= {each.name for each in ALL}


@pytest.mark.parametrize(
    ("recipe", "status", "said"),
    [
        ("@echo begun; echo '3 passed, 1 skipped in 2.1s'; echo later", 0, "3 passed, 1 skipped"),
        ("@echo first; echo '=== 1 failed, 2 passed in 1s ==='; exit 3", 2, "1 failed, 2 passed"),
        ("@echo 12 runs, none lost", 0, "12 runs, none lost"),
        ("@echo fusionloader: no clang; echo ask; exit 77", campaigns.CANNOT_RUN, "no clang"),
        ("@echo begun; sleep 600", campaigns.ENDED, "begun"),
    ],
)
def test_what_is_kept_of_a_run(tmp_path, monkeypatch, recipe, status, said):
    monkeypatch.setattr(campaigns, "PRINTED", tmp_path / "printed")
    (tmp_path / "Makefile").write_text(f"tried:\n\t{recipe}\n")
    seconds = 10 if status == campaigns.ENDED else PATIENCE
    tried = Campaign("tried", seconds / 3600, ("-f", str(tmp_path / "Makefile"), "tried"))
    began = time.monotonic()
    found = campaigns.run(tried)
    assert (found["status"], found["said"].partition(" in ")[0]) == (status, said)
    assert time.monotonic() - began < PATIENCE and found["source"] and found["machine"]
    assert said in (tmp_path / "printed/tried.txt").read_text()


@pytest.mark.parametrize(
    ("status", "said", "cell"),
    [
        (2, "a | b", "failed: a / b"),
        (0, "9 runs: 0 lost", "passed: 9 runs: 0 lost"),
        (0, "3 passed, 9 deselected, 1 warning in 61.0s (0:01:01)", "3 passed"),
        (2, "1 failed, 3 passed, 2 skipped in 2.1s", "failed: 1 failed, 3 passed, 2 skipped"),
        (campaigns.ENDED, "begun", f"{campaigns.ENDED}: begun"),
    ],
)
def test_the_latest_run_has_the_row(status, said, cell):
    run = {
        "campaign": "soak",
        "date": "2026-01-02T03:04:05",
        "source": {"commit": "0123456789ab", "uncommitted": True},
        "seconds": 150,
        "status": 0,
        "said": "nothing",
    }
    runs = [run, {**run, "status": status, "said": said, "seconds": 600}]
    (row,) = [line for line in page(runs).splitlines() if line.startswith("| `soak`")]
    assert row.endswith(f"| 2026-01-02 | 01234567 and changes | 10 min | {cell} |")


def test_words_without_an_end():
    assert last_words("") == ""
    assert last_words("make: *** [x] Error 1\n") == ""

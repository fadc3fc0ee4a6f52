"""The lines of throughput and waiting in the log."""

import logging
import re

import pytest
from test_loader_stats import STAGES, loader_of
from torch import arange
from torch.utils.data import TensorDataset, default_collate

from fusionloader import FusionLoader
from fusionloader.observe.statistics import loader_statistics, waits

LINE = r"(\w+) \(40 samples\), batch (\d+): [\d,]+ samples/s, training waits \d+\.\d% of its time"


@pytest.fixture
def often(monkeypatch):
    """A line after four steps instead of a hundred, and however soon after the last one."""
    monkeypatch.setattr(waits, "STEPS_PER_LINE", 4)
    monkeypatch.setattr(loader_statistics, "_SECONDS_PER_LINE", 0.0)


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.few(2)
def test_each_so_many_steps_have_a_line_whatever_makes_batches(kind, image_folder, often, caplog):
    loader = loader_of(kind, str(image_folder))
    with caplog.at_level(logging.INFO, "fusionloader.progress"):
        for _ in range(3):  # of five batches, the first of which is no step
            list(loader)
    found = [re.fullmatch(LINE, line) for line in caplog.messages if "samples/s" in line]
    assert [int(match[2]) for match in found] == [5, 10, 15][: len(found)] and len(found) >= 2
    assert {match[1] for match in found} == {type(loader.dataset).__name__}


def test_lines_are_written_only_where_info_is_and_seldom(image_folder, caplog, monkeypatch):
    monkeypatch.setattr(waits, "STEPS_PER_LINE", 4)
    loader = FusionLoader(TensorDataset(arange(40)))
    with caplog.at_level(logging.WARNING, "fusionloader.progress"):
        list(loader)
    assert "samples/s" not in caplog.text
    monkeypatch.setattr(loader_statistics, "_SECONDS_PER_LINE", 3600.0)
    with caplog.at_level(logging.INFO, "fusionloader.progress"):
        list(loader)
    assert caplog.text.count("samples/s") == 1


@pytest.mark.parametrize("collate", [None, lambda samples: default_collate(samples)])
def test_a_log_that_raises_loses_no_batch(collate, often, monkeypatch):
    def fail(record):
        raise OSError("the log's disk is full")

    monkeypatch.setattr(loader_statistics.progress_log, "filters", [fail])
    loader = FusionLoader(TensorDataset(arange(40)), 2, collate_fn=collate, num_workers=1)
    taken, failed, batches = [], 0, iter(loader)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader_statistics.progress_log, "level", logging.INFO)
        while len(taken) < 20:
            try:
                taken.append(next(batches)[0].tolist())
            except OSError:
                failed += 1
    assert taken == [[2 * i, 2 * i + 1] for i in range(20)] and failed == 4

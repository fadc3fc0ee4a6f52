"""python -m fusionloader sim: tables and pictures, and files of service times."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fusionloader.__main__ import main
from fusionloader.cli.corpus import ensure_corpus
from fusionloader.cli.simulator import figures, offload_figure
from fusionloader.cli.simulator.times import load


@pytest.fixture(autouse=True)
def short(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(figures, "STEPS", 30)
    monkeypatch.setattr(figures, "SETTLED", 10)
    monkeypatch.setattr(figures, "PHASE_STEPS", 20)
    monkeypatch.setattr(figures, "RANKS", ((2, 2),))
    monkeypatch.setattr(offload_figure, "LANES", (4,))
    monkeypatch.setattr(offload_figure, "MACHINES", (0, 4))
    monkeypatch.setattr(offload_figure, "STEPS", 20)
    monkeypatch.setattr(offload_figure, "PROFILE_STEPS", 8)


@pytest.mark.parametrize(
    "fig", ["8", "12", "15a", "15b", pytest.param("offload", marks=pytest.mark.matrix)]
)
@pytest.mark.few(1)
def test_a_figure_is_printed_and_drawn_and_marked_as_simulated(fig, capsys):
    assert main(["sim", "--fig", fig, "--json", "table.json"]) == 0
    out = capsys.readouterr().out
    assert (
        "SIMULATED" in out and {"15a": "sharing", "offload": "balance"}.get(fig, "CPU only") in out
    )
    report = json.loads(Path("table.json").read_text())
    assert report["simulated"] is True
    assert len(report["table"]) == {"8": 6, "12": 5, "15a": 2, "15b": 3, "offload": 8}[fig]
    with Image.open(f"fig{fig}.png") as picture:
        pixels = np.asarray(picture)
    assert len(np.unique(pixels.reshape(-1, 3), axis=0)) > 4  # the colors of bars or lines
    assert (pixels != 255).any(axis=2).mean() > 0.02


@pytest.mark.parametrize(
    "executor", ["native", pytest.param("torchvision", marks=pytest.mark.matrix)]
)
def test_service_times_are_measured_and_can_be_simulated_with(executor, tmp_path, capsys):
    images = ensure_corpus(40, folder=tmp_path / "images", processes=2)
    measure = ["--measure", "mine.json", "--executor", executor, "--data", str(images.train)]
    assert main(["sim", *measure, "--samples", "30"]) == 0
    assert "30 samples" in capsys.readouterr().out
    times = load(tmp_path / "mine.json")
    sizes = sorted(path.stat().st_size for path in images.train.glob("*/*.jpg"))
    assert len(times.measured) == 30
    assert {nbytes for nbytes, _ in times.measured} <= set(sizes)
    assert main(["sim", "--fig", "8", "--times", "mine.json", "--output", "mine.png"]) == 0
    assert "service times: mine" in capsys.readouterr().out


def test_a_missing_file_is_answered_with_how_to_make_one(capsys):
    assert main(["sim", "--fig", "8", "--times", "nothing.json"]) == 2
    message = capsys.readouterr().err
    assert "nothing.json" in message and "--measure FILE" in message


def test_a_figure_or_a_measurement_has_to_be_asked_for(capsys):
    with pytest.raises(SystemExit):
        main(["sim"])
    assert "--fig" in capsys.readouterr().err

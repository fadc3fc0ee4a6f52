"""The analyze command: what it prints and writes, and what it says of bad input."""

import json
import sys
from pathlib import Path

import pytest

from fusionloader.__main__ import main

TOY = """
import torch
from torch.utils.data import Dataset
from fusionloader import FusionLoader

class Numbers(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, index):
        return torch.full((3,), float(index)), index

def loader():
    return FusionLoader(Numbers(), 4, shuffle=True)

def step(batch):
    batch[0].sum()

def nothing():
    return [1, 2]

SIZE = 3
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    (tmp_path / "toy_training.py").write_text(TOY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    sys.modules.pop("toy_training", None)


def analyze(*arguments):
    return main(["analyze", "--seconds", "0.005", *arguments])


def test_a_loader_and_a_step_are_analyzed_without_a_script(toy, capsys):
    assert analyze("--loader", "toy_training:loader", "--step", "toy_training:step") == 0
    printed = capsys.readouterr().out
    assert "analysis of toy_training:loader (stopped" in printed
    assert "FusionLoader made at toy_training.py:13" in printed
    assert "Training waits" in printed
    for phase in ("as it runs", "one batch, replayed", "files in memory"):
        assert f"\n{phase} " in printed
    assert "files from storage: not measured, no sample opens a file" in printed


def test_predictions_and_everything_measured_are_written(toy):
    out = toy / "found.json"
    asked = ["--what-if", "workers=1,2", "gpu=2x"]
    given = ["--loader", "toy_training:loader", "--step", "toy_training:step"]
    assert analyze(*given, "--json", str(out), *asked) == 0
    found = json.loads(out.read_text())
    (loader,) = found["loaders"]
    assert set(loader["phases"]) == {"today", "memory", "warm"}
    assert loader["loader"]["samples"] == 24
    assert loader["verdict"]["sentences"]
    assert [each["question"]["workers"] for each in loader["what_if"]] == [None, 1, 2]
    assert all(each["seconds"] > 0 for each in loader["what_if"])


def test_a_script_follows_the_questions(toy, capsys):
    (toy / "train.py").write_text(
        "import sys\nfrom toy_training import *\nassert sys.argv[1:] == ['--lr', '3']\n"
        "made = loader()\nfor _ in range(50):\n    for batch in made:\n        step(batch)\n"
    )
    assert analyze("--what-if", "workers=2", "gpu=1,4", "train.py", "--lr", "3") == 0
    assert "workers=2 gpu=4x" in capsys.readouterr().out


def test_what_was_not_measured_is_not_predicted(toy, capsys):
    given = ["--loader", "toy_training:loader", "--step", "toy_training:step"]
    assert analyze(*given, "--what-if", "cache=50%", "storage=1GB/s,memory") == 0
    printed = capsys.readouterr().out
    assert "not predicted, cache: no DecodedCache could be measured" in printed
    assert "\nas it is " in printed and "cache=50%" not in printed


def test_the_example_is_analyzed_as_it_is(toy, capsys):
    example = str(Path(__file__).parents[2] / "examples" / "train_analyzed.py")
    given = ["--what-if", "cache=0,100%", example, "--images", "40", "--step-ms", "1"]
    assert analyze("--json", str(toy / "found.json"), *given) == 0
    train, validation = json.loads((toy / "found.json").read_text())["loaders"]
    assert len(train["what_if"]) == 3 and train["service"]["cached"]["hit_share"] > 0.9
    assert set(validation["phases"]) >= {"today", "memory", "warm"}


@pytest.mark.parametrize("asked", [[], ["--what-if", "workers=1", "cache=0"]])
def test_options_behind_a_module_are_its_own(toy, capsys, asked):
    training = "for _ in range(50):\n    for batch in toy.loader(): toy.step(batch)"
    (toy / "train_toy.py").write_text(
        f"import sys, toy_training as toy\nprint(sys.argv[1:])\n{training}"
    )
    assert analyze(*asked, "-m", "train_toy", "--json", "own") == 0
    assert "['--json', 'own']" in capsys.readouterr().out and not (toy / "own").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give a script that trains, or --loader and --step"),
        (["nowhere.py"], "there is no script nowhere.py"),
        (["-m", "nowhere"], "there is no module nowhere"),
        (["--loader", "toy_training:loader"], "--loader and --step go together"),
        (["--loader", "toy_training", "--step", "x:y"], "is written as module:function"),
        (["--loader", "nowhere:f", "--step", "x:y"], "--loader nowhere:f cannot be imported"),
        (["--loader", "toy_training:gone", "--step", "x:y"], "toy_training:gone cannot be"),
        (["--loader", "toy_training:SIZE", "--step", "x:y"], "is a int, and cannot be called"),
        (
            ["--loader", "toy_training:nothing", "--step", "toy_training:step"],
            "returned a list: it should return a FusionLoader or a torch DataLoader",
        ),
        (["--what-if", "speed=4", "train.py"], 'does not understand "speed=4"'),
        (["--what-if", "workers=4", "gpu=2x", "--json", "f"], "--json comes too late"),
        (["--json", "toy_training.py/f", "toy_training.py"], "--json toy_training.py/f cannot be"),
        (["--file-cache", "half", "toy_training.py"], "--file-cache is written as 30GiB or 35%"),
        (["--seconds", "0", "toy_training.py"], "--seconds should be above 0"),
    ],
)
def test_bad_input_is_answered_with_what_was_found_and_what_to_do(toy, capsys, arguments, message):
    assert analyze(*arguments) == 1
    assert message in capsys.readouterr().err

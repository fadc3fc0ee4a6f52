"""The campaign of other projects' scripts: what it compares, and what it leaves out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).with_name("other_scripts.py")
SCRIPT = """
import torch
from torch.utils.data import DataLoader, TensorDataset

shift = {shift}
for data in (torch.arange(32), torch.arange(8)):
    for batch in DataLoader(TensorDataset(data + shift), 4, shuffle=len(data) == 32, num_workers=1):
        pass
"""


@pytest.mark.studies
@pytest.mark.parametrize("shift", ["0", "DataLoader.__name__ == 'FusionLoader'"])
def test_a_training_with_other_batches_is_found(shift, tmp_path):
    script = tmp_path / "sources/examples/mnist/main.py"
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT.format(shift=shift))
    given = [tmp_path / "sources", "--only", "examples", "--rounds", "1"]
    places = ["--json", tmp_path / "found.json", "--work", tmp_path / "work"]
    command = [sys.executable, CAMPAIGN, *given, *places]
    ended = subprocess.run(command, capture_output=True, text=True)
    differs = shift != "0"
    assert ended.returncode == differs, ended.stdout + ended.stderr
    imagenet, mnist, vae = json.loads((tmp_path / "found.json").read_text())["trainings"]
    for entry in (imagenet, vae):
        assert "git clone https://github.com/pytorch/examples there" in entry["left_out"]
    assert mnist["status"] == [0, 0] and bool(mnist["differences"]) == differs
    found = [(each["batches"], each["same_batches"]) for each in mnist["loaders"]]
    assert found == ([(8, 0), (2, 0)] if differs else [(8, 8), (2, 2)])
    assert mnist["ratios"].keys() == {"waited", "cpu_seconds"}

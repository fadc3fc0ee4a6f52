"""The example under torchrun: it trains, stops in mid-epoch and goes on with the same result."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.torchrun import ranks
from support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "imagenet_ddp.py"


def arguments(folder, checkpoint):
    return [
        *(str(folder), "--checkpoint", str(checkpoint), "--model", "shufflenet_v2_x0_5"),
        *("--size", "64", "--batch-size", "4", "--epochs", "2"),
    ]


def train(folder, checkpoint, count=2):
    """Trains as under torchrun."""
    return ranks(EXAMPLE, *arguments(folder, checkpoint), count=count, path=[str(ROOT)])


def interrupt(folder, checkpoint):
    """Trains for three steps under torchrun itself."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(EXAMPLE), *arguments(folder, checkpoint)]
    command += ["--steps", "3"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.timeout(700)
def test_an_interrupted_training_is_resumed_in_mid_epoch_by_as_many_ranks_and_by_one(
    tmp_path, image_folder
):
    whole, parts, alone = (tmp_path / f"{name}.pt" for name in ("whole", "parts", "alone"))
    interrupt(image_folder, parts)  # after 3 of 5 steps of two ranks: 24 of 40 samples
    shutil.copy(parts, alone)
    train(image_folder, whole)
    assert "resumed in epoch 1 after 3 steps" in train(image_folder, parts)
    one, two = (torch.load(path) for path in (whole, parts))
    assert one["steps"] == two["steps"] == 10
    assert all(torch.equal(one["model"][name], two["model"][name]) for name in one["model"])
    output = train(image_folder, alone, count=1)
    assert "resumed in epoch 1 after 3 steps" in output
    assert "rank 0: 56 samples after 17 steps" in output

"""The example under torchrun: killed in mid-epoch, it goes on with the batches that were left."""

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
# What torchrun starts instead: the example, which SIGKILL ends in one rank after its 4th step.
KILLED = f"""
import os, runpy, signal, sys
from torch.optim.optimizer import register_optimizer_step_post_hook

steps = 0

def count(*_):
    global steps
    steps += 1
    if steps == 4 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)

register_optimizer_step_post_hook(count)
sys.path.insert(0, {str(EXAMPLE.parent)!r})
runpy.run_path({str(EXAMPLE)!r}, run_name="__main__")
"""


def arguments(folder, checkpoint):
    return [
        *("--data", str(folder), "--checkpoint", str(checkpoint), "--every", "3"),
        *("--model", "shufflenet_v2_x0_5", "--size", "64", "--batch-size", "4", "--epochs", "2"),
        "--amp",
    ]


def train(folder, checkpoint, count=2):
    """Trains to the end, as under torchrun."""
    return ranks(EXAMPLE, *arguments(folder, checkpoint), count=count, path=[str(ROOT)])


def train_killed(folder, checkpoint):
    """Trains under torchrun itself, until SIGKILL ends a rank in the 4th step."""
    script = checkpoint.with_suffix(".py")
    script.write_text(KILLED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *arguments(folder, checkpoint)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=PATIENCE,
    )


def assert_same(one, two):
    """The weights, their average, the optimizer and the place of both checkpoints are equal."""
    one, two = (torch.load(path) for path in (one, two))
    assert one["steps"] == two["steps"] == 10
    for part in ("model", "average"):
        assert all(torch.equal(one[part][name], two[part][name]) for name in one[part])
    momentum = [
        [state["momentum_buffer"] for state in each["optimizer"]["state"].values()]
        for each in (one, two)
    ]
    assert all(map(torch.equal, *momentum))


@pytest.mark.examples
@pytest.mark.timeout(700)
def test_a_killed_training_is_resumed_in_mid_epoch_by_as_many_ranks_and_by_one(
    tmp_path, image_folder
):
    whole, parts, alone = (tmp_path / f"{name}.pt" for name in ("whole", "parts", "alone"))
    killed = train_killed(image_folder, parts)
    assert killed.returncode != 0
    assert "SIGKILL" in killed.stderr, killed.stderr[-2000:]
    shutil.copy(parts, alone)  # written after 3 of 5 steps of two ranks: 24 of 40 samples
    train(image_folder, whole)
    assert "resumed in epoch 1 after 3 steps" in train(image_folder, parts)
    assert_same(whole, parts)
    output = train(image_folder, alone, count=1)
    assert "resumed in epoch 1 after 3 steps" in output
    assert "rank 0: 56 samples after 17 steps" in output

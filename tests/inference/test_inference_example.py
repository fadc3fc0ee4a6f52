"""The example of a served model runs."""

import os
import subprocess
import sys
from pathlib import Path

from support.waiting import PATIENCE

ROOT = Path(__file__).parents[2]


def test_the_example_labels_all_images(tmp_path):
    done = subprocess.run(
        [sys.executable, "examples/inference.py", "--images", "40"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert "40 labels in" in done.stdout and "ToTensor(): native" in done.stdout

"""The example of a served model runs."""

import os
from pathlib import Path

from support import warm_start

ROOT = Path(__file__).parents[2]


def test_the_example_labels_all_images(tmp_path):
    done = warm_start.completed(
        *("examples/inference.py", "--images", "40"),
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    assert "40 labels in" in done.stdout and "ToTensor(): native" in done.stdout

"""The example that has nothing to do with data loading."""

import os
from pathlib import Path

from support import warm_start

EXAMPLE = Path(__file__).parents[2] / "examples" / "share_gpu_memory.py"


def test_without_a_driver_the_example_says_what_it_needs():
    environment = {**os.environ, "FUSIONLOADER_LIBCUDA": "/nowhere/libcuda.so"}
    done = warm_start.completed(EXAMPLE, env=environment)
    assert done.returncode == 1
    assert "this example needs a CUDA device: no CUDA driver on this machine" in done.stderr

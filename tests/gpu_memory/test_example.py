"""The example that has nothing to do with data loading."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "share_gpu_memory.py"


def test_without_a_driver_the_example_says_what_it_needs():
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env={**os.environ, "FUSIONLOADER_LIBCUDA": "/nowhere/libcuda.so"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "this example needs a CUDA device: no CUDA driver on this machine" in done.stderr

"""Training beside a GPU worker under CUDA's Multi-Process Service, where its program is there.

    python3 -m benchmarks.gpu.mps --json FILE ARGUMENTS OF benchmarks.training

Without it the device runs kernels of two processes in turns, never together.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.study import append

CONTROL = "nvidia-cuda-mps-control"


def main() -> int:
    """Starts the service, trains, and ends the service."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    options, arguments = parser.parse_known_args()
    if shutil.which(CONTROL) is None:
        append(options.json, mps=f"{CONTROL} is not on this machine")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": str(Path(folder, "pipe")),
            "CUDA_MPS_LOG_DIRECTORY": str(Path(folder, "log")),
        }
        for name in ("pipe", "log"):
            Path(folder, name).mkdir()
        subprocess.run([CONTROL, "-d"], env=environment, check=True)
        command = [sys.executable, "-m", "benchmarks.training", "--label", "mps", *arguments]
        if options.json is not None:
            command += ["--json", str(options.json)]
        try:
            return subprocess.run(command, env=environment).returncode
        finally:
            subprocess.run([CONTROL], input="quit\n", text=True, env=environment)


if __name__ == "__main__":
    raise SystemExit(main())

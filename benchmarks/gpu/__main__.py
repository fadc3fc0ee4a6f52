"""Everything that only a CUDA device can show, in four runs of less than ten minutes each.

    python3 -m benchmarks.gpu a --out FOLDER
    FUSIONLOADER_REHEARSAL=1 python3 -m benchmarks.gpu a --out FOLDER

Each step is a process of its own with a limit of time. It adds each figure to a file of its own as
soon as it is known, one JSON line each: FOLDER/run_a.STEP.jsonl. FOLDER/run_a.json has them all; a
step that fails or hangs is noted there, and the next one begins. The extension has to be built.
With FUSIONLOADER_REHEARSAL=1 the same steps run without a device, over the same time: decoders'
CPU backends, the kernel on the host, the fake driver, and a model that takes next to no time. With
"brief" they are short.

Exit status: 0 if every step has passed.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from benchmarks.gpu.runs import RUNS
from benchmarks.gpu.steps import run_steps


def main() -> int:
    """Runs the steps of one run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", choices=RUNS)
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--only", default="", help="steps whose names contain this")
    parser.add_argument("--seconds", type=float, help="of the whole run (the run's own limit)")
    options = parser.parse_args()
    rehearsal = os.environ.get("FUSIONLOADER_REHEARSAL", "").replace("0", "")
    run = RUNS[options.run]
    steps = [step for step in run.steps if options.only in step.name]
    file = options.out / f"run_{options.run}.json"
    return run_steps(steps, file, options.seconds or run.seconds, rehearsal)


if __name__ == "__main__":
    raise SystemExit(main())

"""Tries memory sharing on this machine's CUDA device, and says what it costs.

    python tests/on_device/memory_sharing.py --json results.jsonl
    python tests/on_device/memory_sharing.py --fake

Each case runs in a process of its own: a stream that hangs, or an error that CUDA does not forget,
ends with it. 0: all passed, 1: one did not, 77: there is no device.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATHS = [str(HERE), str(HERE.parent), str(HERE.parents[1])]
NO_DEVICE = 77
WORK_US = "20000"  # of a launch over the fake driver, or nothing would ever be under way
_MARK = "@@ "


def names(module: str) -> list[str]:
    """The cases of a module, without importing it: that would need what they need."""
    text = (HERE / f"{module}.py").read_text()
    listed = text.rpartition("CASES: list[Case] = [")[2].partition("]")[0]
    return [name.strip() for name in listed.split(",") if name.strip()]


def run_here(module: str, name: str) -> None:
    """Runs a case and prints what it found."""
    try:
        figures = getattr(importlib.import_module(module), name)()
        found: dict[str, Any] = {"passed": True, "figures": figures}
    except Exception:
        found = {"passed": False, "error": traceback.format_exc()}
    print(_MARK + json.dumps(found), flush=True)
    os._exit(0)  # whatever hangs


def run_case(module: str, name: str, limit: float) -> dict[str, Any]:
    """Runs a case in a process of its own; kills it and its children when the time is over."""
    paths = [*PATHS, os.environ.get("PYTHONPATH", "")]
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, __file__, "--case", module, name],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        said, _ = process.communicate(timeout=limit)
        before, mark, told = said.rpartition(_MARK)
        found = json.loads(told) if mark else {"passed": False, "error": before[-2000:]}
    except subprocess.TimeoutExpired:
        found = {"passed": False, "error": f"no end within {limit:.0f} s"}
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return {**found, "seconds": round(time.perf_counter() - began, 2)}


def main() -> int:
    """Runs all cases, or those asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fake", action="store_true", help="over a stand-in for the CUDA driver")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--limit", type=float, default=120, help="seconds for a case")
    parser.add_argument("--json", type=Path, help="where figures go, a line a case")
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    sys.path[:0] = PATHS
    if asked.case:
        run_here(*asked.case)
    if asked.fake:
        with tempfile.TemporaryDirectory() as folder:
            use_fake_driver(Path(folder))
            return run_all(asked, ["memory_cases"])
    return run_all(asked, ["memory_cases", "memory_torch_cases"])


def use_fake_driver(folder: Path) -> None:
    """Builds the stand-in, for the processes that are started from here on."""
    from support.fake_cuda import build_fake_driver

    os.environ["FUSIONLOADER_LIBCUDA"] = str(build_fake_driver(folder))
    os.environ.setdefault("FAKE_CUDA_WORK_US", WORK_US)


def run_all(asked: argparse.Namespace, modules: list[str]) -> int:
    """Runs the cases of some modules; returns the exit code."""
    from support.cuda_driver import why_not

    why = why_not()
    if why is not None:
        print(f"no CUDA device: {why}")
        return NO_DEVICE
    passed = True
    for module in modules:
        for name in names(module):
            if asked.only not in name:
                continue
            found = run_case(module, name, asked.limit)
            if asked.json:  # at once: the whole may end by the clock
                with asked.json.open("a") as lines:
                    lines.write(json.dumps({"case": name, **found}) + "\n")
            passed = passed and found["passed"]
            told = json.dumps(found["figures"]) if found["passed"] else found["error"]
            state = "ok  " if found["passed"] else "FAIL"
            print(f"{state} {name} {found['seconds']} s {told}", flush=True)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

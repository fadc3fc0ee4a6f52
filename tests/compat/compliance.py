"""Runs PyTorch's and torchdata's own loader tests with FusionLoader in the place of the class.

    python tests/compat/compliance.py SUITES [--start-method spawn]

SUITES is a folder with PyTorch's ``test_dataloader.py`` and, under ``stateful/``, torchdata's
``test/stateful_dataloader``; neither is part of this repository. The original class runs first, or
its results are read from where an earlier run left them (``--results``).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from exempt import EXEMPT, reason

HERE = Path(__file__).parent
FILES = ("test_state_dict.py", "test_incremental_state.py", "test_sampler.py", "test_dataloader.py")
OPTIONS = {
    "torch": ["--select", "not proper_exit"],
    "stateful": ["--drop-kwarg", "snapshot_every_n_steps"],
}


def sources(suites: Path) -> dict[str, Path]:
    found = {"torch": suites / "test_dataloader.py", "stateful": suites / "stateful"}
    return {suite: path for suite, path in found.items() if path.exists()}


def run(runner: Path, suite: str, source: Path, out: Path, arguments: list[str]) -> dict[str, str]:
    command = [sys.executable, str(runner), "--suite", suite, "--source", str(source)]
    subprocess.run([*command, "--out", str(out), *arguments], check=False)
    tests = json.loads(out.read_text())["tests"]
    return {name: test["outcome"] for name, test in tests.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("suites", type=Path, help="folder of the suites")
    parser.add_argument("--runner", type=Path, help="run_compliance.py, if not in SUITES")
    parser.add_argument("--results", type=Path, default=Path("build/compliance"))
    parser.add_argument("--start-method", choices=("fork", "spawn", "forkserver"), default="fork")
    arguments = parser.parse_args()
    runner = arguments.runner or arguments.suites / "run_compliance.py"
    arguments.results.mkdir(parents=True, exist_ok=True)
    unexplained = 0
    for suite, source in sources(arguments.suites).items():
        common = ["--timeout", "60", "--start-method", arguments.start_method, *OPTIONS[suite]]
        base = arguments.results / f"{suite}-{arguments.start_method}-original.json"
        if not base.exists():
            run(runner, suite, source, base, common)
        ours = ["--baseline", str(base), "--loader", "fusionloader:FusionLoader", *common]
        out = arguments.results / f"{suite}-{arguments.start_method}.json"
        found = run(runner, suite, source, out, ours)
        was = json.loads(base.read_text())["tests"]
        wanted = [name for name, test in was.items() if test["outcome"] == "passed"]
        failed = [name for name in wanted if found.get(name) != "passed"]
        exempt = [name for name in failed if reason(suite, name)]
        unexplained += len(failed) - len(exempt)
        print(
            f"{suite}, {arguments.start_method}: {len(wanted) - len(failed)} of {len(wanted)} "
            f"passed; {len(exempt)} failed of {len(EXEMPT[suite])} exempt by name"
        )
        for name in sorted(set(failed) - set(exempt)):
            print(f"  not exempt: {name}")
    return 1 if unexplained else 0


if __name__ == "__main__":
    sys.exit(main())

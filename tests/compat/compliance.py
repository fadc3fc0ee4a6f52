"""Runs PyTorch's and torchdata's own loader tests with FusionLoader in the place of the class.

    python tests/compat/compliance.py SUITES [--start-method spawn] [--suite torch] [--slow]

SUITES is a folder with PyTorch's ``test_dataloader.py`` and, under ``stateful/``, torchdata's
``test/stateful_dataloader``; neither is part of this repository. The original class runs first, or
its results are read from where an earlier run left them (``--results``). Every test that passes
with it has to pass with FusionLoader, but for those that ``exempt.py`` names.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import signal
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from exempt import EXEMPT, reason
from suite_run import Found, SuiteRun

_MODULES = {
    "torch": ("expecttest", "psutil", "pytest_timeout"),
    "stateful": ("expecttest", "psutil", "pytest_timeout", "torchdata", "parameterized"),
}


def sources(suites: Path) -> dict[str, Path]:
    found = {"torch": suites / "test_dataloader.py", "stateful": suites / "stateful"}
    return {suite: path for suite, path in found.items() if path.exists()}


def kept(path: Path) -> dict[str, Found]:
    return {name: Found(**test) for name, test in json.loads(path.read_text()).items()}


def keep(path: Path, tests: dict[str, Found]) -> None:
    path.write_text(json.dumps({name: asdict(test) for name, test in tests.items()}, indent=1))


def report(suite: str, was: dict[str, Found], now: dict[str, Found]) -> tuple[str, list[str]]:
    """Prints how FusionLoader does; returns that in a line, and the failures without a reason."""
    wanted = [name for name, test in was.items() if test.outcome == "passed"]
    failed = [name for name in wanted if name not in now or now[name].outcome != "passed"]
    exempt = [name for name in failed if reason(suite, name)]
    counts = (
        f"{len(wanted) - len(failed)} passed of {len(wanted)} that pass with the original; "
        f"{len(exempt)} failed of {len(EXEMPT[suite])} exempt by name"
    )
    print(counts)
    served = Counter(served_by for test in now.values() for served_by in test.iterators)
    for served_by, tests in served.most_common():
        print(f"  {tests} tests served by {served_by}")
    for name, test in was.items():
        if test.outcome not in ("passed", "skipped"):
            print(f"  not compared: {name}: {test.outcome} with the original: {test.said}")
    unexplained = sorted(set(failed) - set(exempt))
    for name in unexplained:
        print(f"  not exempt: {name}: {now.get(name, Found('was not run')).said}")
    return f"{suite}: {counts}", unexplained


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("suites", type=Path, help="folder of the suites")
    parser.add_argument("--suite", choices=tuple(EXEMPT), help="one of them only")
    parser.add_argument("--results", type=Path, default=Path("build/compliance"))
    parser.add_argument("--start-method", choices=("fork", "spawn", "forkserver"), default="fork")
    parser.add_argument("--select", default="", help="what pytest's -k takes")
    parser.add_argument("--timeout", type=float, default=180, help="seconds a test (180)")
    parser.add_argument("--slow", action="store_true", help="also what PyTorch marks as slow")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # what runs is ended then
    arguments.results.mkdir(parents=True, exist_ok=True)
    method, counts, unexplained = arguments.start_method, list[str](), list[str]()
    for suite, source in sources(arguments.suites.resolve()).items():
        missing = [name for name in _MODULES[suite] if importlib.util.find_spec(name) is None]
        if arguments.suite not in (None, suite) or missing:
            if missing:
                print(f"{suite}: left out, {', '.join(missing)} is not installed")
            continue
        results = arguments.results / f"{suite}-{method}{'-slow' * arguments.slow}"
        tests = {}
        for kind in ("original", "ours"):
            path = Path(f"{results}-{kind}.json")
            if kind == "original" and path.exists() and not arguments.select:
                tests[kind] = kept(path)
                continue
            log = path.with_suffix(".log")
            log.unlink(missing_ok=True)
            tests[kind] = SuiteRun(
                suite,
                source,
                kind == "ours",
                method,
                arguments.timeout,
                arguments.select,
                arguments.slow,
                log,
            ).run()
            if not tests[kind]:
                print(f"{suite}: no test was run, see {log}")
                return 1
            if not arguments.select:
                keep(path, tests[kind])
        print(f"{suite}, {method}: ", end="")
        line, failed = report(suite, tests["original"], tests["ours"])
        counts.append(line)
        unexplained += failed
    if not counts:
        suites = arguments.suites
        print(f"fusionloader: no suite was run: is test_dataloader.py or stateful/ in {suites}?")
        return 77  # not a failure: benchmarks/campaigns.py
    print(". ".join(counts))
    return int(bool(unexplained))


if __name__ == "__main__":
    sys.exit(main())

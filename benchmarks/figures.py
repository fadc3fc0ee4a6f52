"""Which files of figures are older than the code, and how to measure them anew.

Run from the root of the repository: ``make figures`` lists the files, and ``make figures RUN=1``
measures those again that are not of this code, which takes hours. ``ARGS="collate streams"`` names
some.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
Study = dict[str, Any]


def main() -> int:
    """Prints a line for each file; measures anew if asked; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="files, without .json (all)")
    parser.add_argument("--run", action="store_true", help="measure again what is old")
    options = parser.parse_args()
    files = {
        file: state
        for file in sorted(RESULTS.rglob("*.json"))
        if not options.names or file.stem in options.names
        for state in [state_of(json.loads(file.read_text()))]
    }
    width = max((len(file.stem) for file in files), default=0)
    for file, state in files.items():
        print(f"{file.stem.ljust(width)}  {state or 'of this code'}; {_pages(file)}")
    old = [file for file, state in files.items() if state]
    print(f"{len(old)} of {len(files)} files are not of this code")
    return max((_measure(file) for file in old), default=0) if options.run else 0


def unrecorded(study: Study) -> str:
    """Returns why nobody can say which code a study measured; empty if its trees are known."""
    source = study["source"]
    if not source or not source["trees"]:
        return "measured code that is in no history"
    return "measured with uncommitted changes" if source["uncommitted"] else ""


def state_of(study: Study) -> str:
    """Returns why a study's figures may not be those of the code; empty if they are."""
    if why := unrecorded(study):
        return why
    trees = study["source"]["trees"].items()
    changed = [name for name, tree in trees if _git("rev-parse", f"HEAD:{name}") != tree]
    since = _git("rev-list", "--count", f"{study['source']['commit']}..", "--", *changed)
    commits = f"{since} commits" if since else "its commit is in no history"
    return f"changed since: {' and '.join(changed)} ({commits})" if changed else ""


def command_of(file: Path, study: Study) -> list[str] | None:
    """Returns the arguments of Python that measure a file anew, ``None`` if it does not say.

    The file of a study with some of its settings, such as ``breadth-avx2``, has the study's name
    before the dash.
    """
    flags, name = study.get("flags", {}), file.stem.partition("-")[0]
    if flags and (ROOT / "benchmarks" / f"{name}.py").exists():
        words = [f"benchmarks.{name}"]
    elif "workload" in flags:
        words = ["fusionloader", "bench"]
    else:
        return None
    if flags.get("data"):  # the name of a folder, without its place
        return None
    for name, value in flags.items():
        if value is True:
            words.append(f"--{name.replace('_', '-')}")
        elif value is not None and value is not False and name != "json":
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words += [f"--{name.replace('_', '-')}", text]
    return ["-m", *words, "--json", str(file.relative_to(ROOT))]


def _measure(file: Path) -> int:
    study = json.loads(file.read_text())
    command, environment = command_of(file, study), dict(os.environ)
    if file.stem.endswith("-avx2"):  # also on a machine with more
        environment |= {"FUSIONLOADER_SIMD": "avx2", "ATEN_CPU_CAPABILITY": "avx2"}
    if command is None:
        print(f"{file.stem}: the file does not say how it was measured", file=sys.stderr)
        return 1
    print("python", *command, flush=True)
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment).returncode


def _pages(file: Path) -> str:
    name = str(file.relative_to(ROOT))
    found = [str(page.relative_to(ROOT)) for page in pages() if name in page.read_text()]
    return ", ".join(found) or "on no page"


def pages() -> Iterator[Path]:
    """Yields the pages that may state figures."""
    yield ROOT / "README.md"
    yield from sorted((ROOT / "docs").rglob("*.md"))


def _git(*arguments: str) -> str:
    """Returns what git prints; empty where there is no such thing, or no git."""
    try:
        done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())

"""SECURITY.md names files that are there, and all of the package that unpickles."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

try:
    import tomllib
except ImportError:  # Python 3.10
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "SECURITY.md").read_text()


def test_files_and_targets_that_it_names_are_there():
    paths = re.findall(r"`((?:fusionloader|csrc|tests|\.github)/[\w./-]+)`", PAGE)
    assert len(paths) > 20
    assert [path for path in paths if not (ROOT / path).is_file()] == []
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"`make (?:campaign NAME=)?(\w+)`", PAGE)
    assert len(targets) > 3
    assert [name for name in targets if f"\n{name}:" not in makefile] == []


def test_every_file_that_may_unpickle_does():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    ignored = settings["tool"]["ruff"]["lint"]["per-file-ignores"]
    files = [path for path, rules in ignored.items() if "S301" in rules]
    assert files
    for path in files:
        assert re.search(r"pickle\.loads?\(", (ROOT / path).read_text()), path


def test_a_new_file_that_unpickles_is_refused():
    done = subprocess.run(
        [
            Path(sys.executable).with_name("ruff"),
            "check",
            "--stdin-filename",
            "fusionloader/new.py",
            "-",
        ],
        input='"""New."""\n\nimport pickle\n\nMADE = pickle.loads(b"")\n',
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "S301" in done.stdout

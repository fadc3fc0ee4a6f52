"""Files that unpickle are listed, and no others may."""

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

"""The kit for GPU machines without network: what its scripts say where something is missing."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

KIT = Path(__file__).parents[1] / ".ci" / "gpu-kit"


def run(script: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KIT / script, folder],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=60,
    )


@pytest.fixture
def folder(tmp_path):
    """Where the pieces are; an unpacked kit has one file."""
    content = tmp_path / "content"
    content.mkdir()
    # So much that does not compress that the archive of DALI has two pieces.
    (content / "file").write_bytes(random.Random(0).randbytes(100_000))
    pieces = tmp_path / "pieces"
    pieces.mkdir()
    for name in ("native.tar.xz", "dali.tar.xz"):
        with tarfile.open(pieces / name, "w:xz") as archive:
            archive.add(content, ".")
    whole = (pieces / "dali.tar.xz").read_bytes()
    (pieces / "dali.tar.xz").unlink()
    (pieces / "dali.tar.xz.aa").write_bytes(whole[:60_000])
    (pieces / "dali.tar.xz.ab").write_bytes(whole[60_000:])
    return pieces


@pytest.mark.parametrize(("script", "variable"), [("pack", "PYTHON312"), ("unpack", "PYTHON")])
def test_another_python_is_refused(folder, script, variable):
    done = run(script, folder, **{variable: "false"})
    assert done.returncode == 1
    assert f"false is not a CPython 3.12; set {variable} to " in done.stderr


def test_a_folder_without_a_kit_is_told(folder):
    (folder / "native.tar.xz").unlink()
    done = run("unpack", folder, PYTHON="true")
    assert done.returncode == 1
    assert f"{folder} has no native.tar.xz; make gpu-kit writes it" in done.stderr


@pytest.mark.parametrize("missing", ["aa", "ab"])
def test_a_piece_that_is_missing_is_told(folder, missing):
    (folder / f"dali.tar.xz.{missing}").unlink()
    done = run("unpack", folder, PYTHON="true")
    assert done.returncode == 1
    left = "ab" if missing == "aa" else "aa"
    assert f"a piece of DALI is missing in {folder}: dali.tar.xz.{left}" in done.stderr
    assert not (folder / "env.sh").exists()


@pytest.mark.studies
def test_the_check_has_a_gpu_worker_take_part_in_an_epoch():
    pytest.importorskip("nvidia.dali")
    done = subprocess.run(
        [sys.executable, KIT / "check"],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=KIT.parents[1],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("gpu_worker")]
    assert re.search(r"works: process: [1-9]\d* samples .* thread: [1-9]\d* samples", line)

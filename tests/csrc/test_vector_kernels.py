"""The vector kernels of a sample's way against their scalar references, without Python between.

The same programs run on 64-bit Arm under emulation: see ``make neon``.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from native_samples import SIMD_LEVELS

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CSRC = ROOT / "csrc"
# Sources, and what they are linked with.
PROGRAMS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "check_kernels": (
        ("jpeg/inverse_dct*.cpp", "jpeg/reduced_dct*.cpp", "jpeg/sample_rows*.cpp"),
        (),
    ),
    "check_row_kernels": (
        ("resize/kernels*.cpp", "resize/weights.cpp", "ops/interleave*.cpp", "convert/*.cpp"),
        (),
    ),
    "check_unfilter": (("png/unfilter*.cpp",), ()),
    "check_windows": (("jpeg/*.cpp",), ("-ljpeg",)),
}


def run(*command: object) -> str:
    # Without the sanitizer's library that this process may have to load.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


# The suite compiles one of them, and calls the others' kernels of every level from Python, too.
IN_THE_SUITE = ("check_unfilter",)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in IN_THE_SUITE else pytest.mark.matrix)
        for name in PROGRAMS
    ],
)
def test_every_level_gives_the_reference_s_results(name, tmp_path):
    patterns, libraries = PROGRAMS[name]
    sources = [path for pattern in patterns for path in CSRC.glob(pattern)]
    flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-Wall", "-Wextra", "-Wconversion"]
    flags += ["-Werror", *os.environ.get("CPPFLAGS", "").split()]
    flags += [f"-I{CSRC}", f"-I{ROOT / 'tests' / 'fuzz' / 'targets'}"]
    libraries = (*os.environ.get("LDFLAGS", "").split(), *libraries)
    program = tmp_path / name
    run("g++", *flags, HERE / f"{name}.cpp", *sources, "-o", program, *libraries)
    assert run(program).split() == SIMD_LEVELS[1:]

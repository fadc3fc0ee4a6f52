"""Builds the native extension; everything else about the package is in pyproject.toml."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

ROOT = Path(__file__).parent
WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Werror"]
SANITIZERS = [
    "-fsanitize=address,undefined,float-cast-overflow",
    "-fno-omit-frame-pointer",
    "-g",
    "-O1",
]


def require_libjpeg_turbo() -> None:
    """Stops with the command that helps when libjpeg-turbo's headers are missing."""
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise SystemExit(f"fusionloader: no C++ compiler ({compiler}); try: apt-get install g++")
    probe = "#include <cstdio>\n#include <jpeglib.h>\nint x = JCS_EXT_RGBX;\n"
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.cpp")
        source.write_text(probe)
        command = [compiler, *os.environ.get("CPPFLAGS", "").split(), "-fsyntax-only", str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(
            "fusionloader: the header of libjpeg-turbo (jpeglib.h) was not found.\n"
            "  Debian, Ubuntu: apt-get install libjpeg62-turbo-dev (or libjpeg-turbo8-dev)\n"
            "  Fedora: dnf install libjpeg-turbo-devel    conda: conda install libjpeg-turbo\n"
            "  elsewhere: set CPPFLAGS=-I... and LDFLAGS=-L..."
        )


require_libjpeg_turbo()
ParallelCompile("FUSIONLOADER_BUILD_JOBS").install()
sanitize = SANITIZERS if os.environ.get("FUSIONLOADER_SANITIZE") else []
setup(
    ext_modules=[
        Pybind11Extension(
            "fusionloader._native",
            sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/*/*.cpp")),
            include_dirs=["csrc"],
            libraries=["jpeg"],
            cxx_std=17,
            # Contraction to fused multiply-adds would change roundings that have to match.
            extra_compile_args=["-O3", "-ffp-contract=off", *WARNINGS, *sanitize],
            extra_link_args=sanitize,
            depends=sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("csrc/*/*.hpp")),
        )
    ],
    cmdclass={"build_ext": build_ext},
)

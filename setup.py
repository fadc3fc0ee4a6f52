"""Builds the native extension alone: `python setup.py build_ext --inplace`, with setuptools' flags.

CMake does, by csrc/CMakeLists.txt, which takes further settings as -DNAME=VALUE. Everything else is
pip's, which calls CMake through scikit-build-core.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pybind11

ROOT = Path(__file__).resolve().parent
# One folder for each interpreter: the bindings are made of its headers.
OBJECTS = ROOT / "build" / f"native-{sys.implementation.cache_tag}"

parser = argparse.ArgumentParser(epilog="everything else: pip install .")
parser.add_argument("command", choices=["build_ext"])
where = parser.add_mutually_exclusive_group(required=True)
where.add_argument("-i", "--inplace", dest="build_lib", action="store_const", const=ROOT)
where.add_argument("-b", "--build-lib", help="folder of the package to install it into")
parser.add_argument("-t", "--build-temp", default=OBJECTS, help="folder of the objects")
options, settings = parser.parse_known_args()

os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
settings += [f"-DPython_EXECUTABLE={sys.executable}", f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"]
if shutil.which("ninja"):
    settings.append("-GNinja")
if shutil.which("cmake") is None:
    raise SystemExit("fusionloader: no cmake; try: pip install cmake ninja")
for command in (
    ["cmake", "-S", ROOT / "csrc", "-B", options.build_temp, *settings],
    ["cmake", "--build", options.build_temp, "--parallel", str(len(os.sched_getaffinity(0)))],
    ["cmake", "--install", options.build_temp, "--prefix", options.build_lib],
):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stdout)

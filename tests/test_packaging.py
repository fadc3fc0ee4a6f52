"""What is packed: all that building the package elsewhere needs, and no more."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from support.waiting import PATIENCE

import fusionloader

ROOT = Path(__file__).parents[1]
# Whatever is compiled, on the user's machine too, what type checkers read, and pages' templates.
PATTERNS = (
    "csrc/*/*",
    "csrc/CMakeLists.txt",
    "fusionloader/**/*.py",
    "fusionloader/**/*.cpp",
    "fusionloader/*.pyi",
    "fusionloader/py.typed",
    "fusionloader/cli/drawn_report/files/*",
)
# Where nothing was installed, that is not the version of anything.
VERSION = "0.2.0" if "unknown" in fusionloader.__version__ else fusionloader.__version__
BUILD = "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"


def test_a_source_distribution_has_all_that_is_compiled(tmp_path):
    """Of a copy: building writes the version into the tree, where other tests read it."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    tree, made = tmp_path / "tree", tmp_path / "made"
    for name in found.split("\0"):
        if (ROOT / name).is_file():  # not a link to a folder, nor removed since
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tree / name)
    (tree / "fusionloader/_native.so").touch()  # as if it was built there
    command = [sys.executable, "-c", BUILD, str(made)]
    environment = os.environ | {"SETUPTOOLS_SCM_PRETEND_VERSION": VERSION}
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    (archive,) = made.iterdir()
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
        folder = packed.getnames()[0].partition("/")[0]
        version = packed.extractfile(f"{folder}/fusionloader/_version.py").read().decode()
    assert f'__version__ = "{VERSION}"' in version
    for pattern in PATTERNS:
        wanted = {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern) if path.is_file()}
        wanted = {name for name in wanted if "__pycache__" not in name}
        assert wanted
        assert wanted <= names, wanted - names
    assert not [name for name in names if name.startswith(("tests/", ".ci/")) or ".so" in name]


def failed_build(folder, *settings, **environment):
    """Returns what building says; it stops before anything is compiled."""
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(folder / "package")]
    command += ["--build-temp", str(folder / "objects"), *settings]
    environment = os.environ | environment
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 1
    return " ".join(done.stderr.split())


def test_where_the_c_library_is_not_glibc_building_says_so(tmp_path):
    said = failed_build(tmp_path, "-DFUSIONLOADER_GLIBC=OFF")
    assert "needs glibc" in said and "musl" in said


def test_a_missing_library_is_named_with_the_command_that_helps(tmp_path):
    (tmp_path / "libdeflate.h").write_text("#error not the library's\n")
    said = failed_build(tmp_path, CPPFLAGS=f"-I{tmp_path}")
    assert "the header of libdeflate (libdeflate.h) was not found" in said
    assert "apt-get install libdeflate-dev" in said

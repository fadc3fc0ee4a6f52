"""What is packed: all that building the package elsewhere needs."""

import subprocess
import sys
from pathlib import Path

from support.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
# Whatever is compiled, on the user's machine too, what type checkers read, and pages' templates.
PATTERNS = (
    "csrc/*/*",
    "fusionloader/**/*.cpp",
    "fusionloader/*.pyi",
    "fusionloader/py.typed",
    "fusionloader/report/files/*",
)


def test_a_source_distribution_has_all_that_is_compiled(tmp_path):
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    packed = set((tmp_path / "fusionloader.egg-info" / "SOURCES.txt").read_text().splitlines())
    for pattern in PATTERNS:
        wanted = {str(path.relative_to(ROOT)) for path in ROOT.glob(pattern)}
        assert wanted
        assert wanted <= packed, wanted - packed


def test_where_the_c_library_is_not_glibc_building_says_so():
    code = "import platform, runpy, sys; platform.libc_ver = lambda: ('', ''); "
    code += "sys.argv[:] = ['setup.py', '--version']; runpy.run_path('setup.py')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "needs glibc" in done.stderr and "musl" in done.stderr

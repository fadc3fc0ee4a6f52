"""The code of the pages runs, on a few images."""

import os

import pytest
from support import warm_start
from support.page_code import PAGES, ROOT, python_blocks

pytestmark = pytest.mark.docs
RUN = [page for page in PAGES if any(block.reason is None for block in python_blocks(page))]


@pytest.mark.parametrize("page", RUN)
def test_the_code_of_a_page_runs(page, tmp_path):
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    (tmp_path / "cwd").mkdir()
    done = warm_start.completed(
        *("-m", "support.run_page", page), cwd=tmp_path / "cwd", env=environment
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    run = [f"{block.place} runs" for block in python_blocks(page) if block.reason is None]
    assert [line for line in done.stdout.splitlines() if line in run] == run

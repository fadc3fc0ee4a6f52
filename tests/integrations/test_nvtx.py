"""Waits as NVTX ranges, as a profiler is told of them."""

import os
from pathlib import Path

from support import warm_start
from support.fake_cuda import compile_library

from fusionloader import FusionLoader
from fusionloader.addons.integrations.nvtx import annotate

SCRIPT = """
from fusionloader import FusionLoader
from fusionloader.addons.integrations.nvtx import annotate

class Bad(list):
    def __getitem__(self, index):
        if index == 3:
            raise ValueError
        return super().__getitem__(index)

loader = FusionLoader([1, 2, 3, 4], 2)
with annotate(loader, "val"):
    for batch in loader:
        print("batch", flush=True)
list(loader)
print("failing", flush=True)
failing = FusionLoader(Bad([1, 2, 3, 4]), 2)
annotate(failing)
try:
    list(failing)
except ValueError:
    print("failed", flush=True)
"""
VAL = ["fusionloader push val: next()", "fusionloader pop"]
TRAIN = ["fusionloader push train: next()", "fusionloader pop"]


def test_a_profiler_sees_a_range_for_each_wait(tmp_path):
    source = Path(__file__).with_name("nvtx_recorder.cpp")
    library = compile_library([source], tmp_path / "recorder.so", "-fvisibility=default")
    environment = {**os.environ, "NVTX_INJECTION64_PATH": str(library)}
    done = warm_start.completed("-c", SCRIPT, env=environment)
    assert done.returncode == 0, done.stderr
    expected = [*VAL, "batch", *VAL, "batch", *VAL, "failing", *TRAIN, *TRAIN, "failed"]
    assert done.stdout.splitlines() == expected


def test_batches_are_the_same_with_and_without():
    loader = FusionLoader(list(range(6)), 2)
    plain = [batch.tolist() for batch in loader]
    with annotate(loader) as annotation:
        assert [batch.tolist() for batch in loader] == plain
    annotation.close()
    assert loader._state.statistics.observers == []

"""What makes importing cheap: beyond torch, only a few modules of its own are loaded.

Torchvision alone takes as long as torch, and loads Pillow; whoever needs it loads it on first use.
"""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import PATIENCE

ROOT = Path(__file__).parents[1]


def loaded_by(statement: str, *, after: str = "") -> set[str]:
    code = f"""
import json, sys
{after}
before = set(sys.modules)
{statement}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


@pytest.fixture(scope="module")
def beyond_torch():
    return loaded_by("from fusionloader import FusionLoader", after="import torch.utils.data")


def test_the_package_by_itself_loads_no_other():
    names = {name.split(".")[0] for name in loaded_by("import fusionloader")}
    assert names <= {"fusionloader"} | sys.stdlib_module_names


def test_the_loader_loads_nothing_beyond_torch_but_its_own_modules(beyond_torch):
    names = {name.split(".")[0] for name in beyond_torch}
    assert names - sys.stdlib_module_names == {"fusionloader"}


def test_an_epoch_loads_torchvision_only_if_the_dataset_does():
    epoch = """
import sys
from fusionloader import FusionLoader
class Modules(list):
    def __getitem__(self, index):
        return len({"torchvision", "sympy", "triton"} & set(sys.modules))
for workers in (0, 1):
    batches = list(FusionLoader(Modules(range(9)), 4, num_workers=workers))
    assert len(batches) == 3 and not any(map(any, batches)), batches
"""
    names = {name.split(".")[0] for name in loaded_by(epoch, after="import torch.utils.data")}
    assert not names & {"torchvision", "sympy", "triton"}


@pytest.mark.parametrize(
    "room",
    [
        *("cli", "gpu", "data.sources", "_native"),
        *("transforms.executors.native", "transforms.plan.transforms"),
    ],
)
def test_rooms_are_loaded_when_they_are_needed(room, beyond_torch):
    assert importlib.util.find_spec(f"fusionloader.{room}")
    assert not [name for name in beyond_torch if f"{name}.".startswith(f"fusionloader.{room}.")]

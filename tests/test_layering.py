"""What import-linter (pyproject.toml) does not see: the public face, and small processes."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import warm_start
from support.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fusionloader"
# The public names are for users, and for what stands outside the loader as users do.
OUTSIDE = ("fusionloader.cli", "fusionloader.addons.integrations", "fusionloader.__main__")
SMALL_PROCESSES = [
    "fusionloader.workers.native_worker",
    "fusionloader.sharing.pool.worker",
    "fusionloader.cache.holder_process",
    "fusionloader.cache.holder",
    "fusionloader.sharing.jobs.coordinator",
]
MOST_ENTRIES = 19  # at the top of the package


def module_files() -> dict[str, Path]:
    found = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_in(nodes: list[ast.stmt], module: str, *, is_package: bool) -> Iterator[str]:
    """Absolute names of what the statements import; ``from x import y`` gives x.y."""
    for node in nodes:
        for inner in ast.walk(node):
            if isinstance(inner, ast.Import):
                yield from (alias.name for alias in inner.names)
            elif isinstance(inner, ast.ImportFrom):
                base = inner.module or ""
                if inner.level:
                    keep = module.split(".")
                    keep = keep[: len(keep) - inner.level + is_package]
                    base = ".".join([*keep, *([inner.module] if inner.module else [])])
                yield from (f"{base}.{alias.name}" for alias in inner.names)


def module_level(tree: ast.Module) -> list[ast.stmt]:
    """The statements that run on import: no function bodies, nothing for type checkers alone."""
    kept: list[ast.stmt] = []
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
        elif isinstance(node, (ast.If, ast.Try, ast.With, ast.ClassDef)):
            waiting += node.body + getattr(node, "orelse", []) + getattr(node, "finalbody", [])
            for handler in getattr(node, "handlers", []):
                waiting += handler.body
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            kept.append(node)
    return kept


def public_names(module: str, path: Path) -> list[str]:
    """What a module imports of ``fusionloader`` itself; the extension lies there too."""
    names = imports_in(ast.parse(path.read_text()).body, module, is_package=path.stem == "__init__")
    own = {name for name in names if name.count(".") == 1 and name.startswith("fusionloader.")}
    rooms = {f"fusionloader.{found.stem}" for found in PACKAGE.iterdir()}
    return sorted(own - rooms - {"fusionloader._native"})


def test_the_loader_does_not_import_its_own_public_face():
    wrong = {
        module: names
        for module, path in module_files().items()
        if module != "fusionloader"
        and not module.startswith(OUTSIDE)
        and (names := public_names(module, path))
    }
    assert wrong == {}


def test_an_import_of_the_public_face_is_found(tmp_path):
    path = tmp_path / "stages.py"
    path.write_text("def f():\n    from fusionloader import FusionLoader\n")
    assert public_names("fusionloader.transforms.plan.stages", path) == [
        "fusionloader.FusionLoader"
    ]


def test_the_top_level_shows_the_architecture():
    entries = {name.split(".")[1] for name in module_files() if "." in name}
    assert len(entries - {"_version", "__main__"}) <= MOST_ENTRIES


def test_the_name_of_a_class_means_one_thing():
    found = [
        node.name
        for path in module_files().values()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert [name for name, count in Counter(found).items() if count > 1] == []


def modules_reached_from(start: str) -> set[str]:
    """Names imported at module level by ``start``, by what it imports and by their packages."""
    files = module_files()
    reached: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        if "." in name:
            waiting.append(name.rpartition(".")[0])
        if path := files.get(name):
            statements = module_level(ast.parse(path.read_text()))
            waiting += imports_in(statements, name, is_package=path.name == "__init__.py")
    return reached


@pytest.mark.parametrize("process", SMALL_PROCESSES)
@pytest.mark.parametrize("heavy", ["torch", "torchvision"])
def test_a_small_process_reaches_no_heavy_module(process, heavy):
    assert process in module_files(), f"{process} is missing"
    assert heavy not in modules_reached_from(process)


@pytest.mark.parametrize("process", SMALL_PROCESSES)
def test_a_small_process_loads_without_torch(process):
    code = f"import sys, {process}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=PATIENCE)


def test_training_loads_neither_the_simulator_nor_the_commands():
    code = """
import sys
import torch
from fusionloader import FusionLoader

list(FusionLoader(torch.utils.data.TensorDataset(torch.arange(8)), 4, num_workers=1))
sys.exit(any(name.startswith("fusionloader.cli") for name in sys.modules))
"""
    assert warm_start.completed("-c", code, cwd=ROOT).returncode == 0


def test_no_two_test_files_have_one_name():
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []  # pytest takes one only

"""The parts import downwards only, and the light worker reaches no torch."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "fusionloader"
# A part may import parts of a higher rank and itself; parts of one rank do not see each other.
RANKS = {
    "__main__": 0,
    "cli": 1,
    "integrations": 1,
    "sim": 2,
    "loader": 2,
    "options": 6,
    "policies": 3,
    "runtime": 3,
    "executors": 4,
    "scheduler": 5,
    "shm": 5,
    "memory": 5,
    "plan": 6,
    "user_cache": 6,
    "_native": 7,
}
# What any part may import, and what may itself import only native code.
OPEN_TO_ALL = {"errors", "_native"}
# The public names are for users and for the commands, which are users too; the commands show the
# version and run by name.
USERS = {"cli", "integrations", "__main__", "__init__"}
# Packages that are public faces too: what they show is made in another part.
PUBLIC_PACKAGES = {"fusionloader.plan": "executors"}
LIGHT_WORKERS = ["fusionloader.workers.native_worker", "fusionloader.pool.worker"]


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


def part_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def upward_imports(module: str, path: Path) -> list[str]:
    part = part_of(module)
    tree = ast.parse(path.read_text())
    wrong = []
    for name in imports_in(tree.body, module, is_package=path.name == "__init__.py"):
        if name != "fusionloader" and not name.startswith("fusionloader."):
            continue
        target = part_of(name)
        known = target in RANKS or target in OPEN_TO_ALL
        if not known:  # fusionloader itself, or a public name of it
            if part not in USERS:
                wrong.append(f"{module} imports the public face ({name})")
        elif part == "__init__":
            if target not in ("loader", "options"):
                wrong.append(f"{module} imports {name}")
        elif module in PUBLIC_PACKAGES and target == PUBLIC_PACKAGES[module]:
            continue
        elif target not in OPEN_TO_ALL and target != part and RANKS[target] <= RANKS.get(part, -1):
            wrong.append(f"{module} imports {name}")
    return wrong


def test_every_part_of_the_package_has_a_rank():
    parts = {part_of(module) for module in module_files()} - {"__init__"}
    assert parts <= set(RANKS) | OPEN_TO_ALL


def test_imports_go_downwards_only():
    wrong = [
        text for module, path in module_files().items() for text in upward_imports(module, path)
    ]
    assert wrong == []


def test_an_upward_import_is_found(tmp_path):
    path = tmp_path / "stages.py"
    path.write_text("def f():\n    from fusionloader.runtime import local_manager\n")
    assert upward_imports("fusionloader.plan.stages", path)
    path.write_text("from ..runtime import local_manager\n")
    assert upward_imports("fusionloader.plan.stages", path)


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


@pytest.mark.parametrize("worker", LIGHT_WORKERS)
@pytest.mark.parametrize("heavy", ["torch", "torchvision"])
def test_a_light_worker_reaches_no_heavy_module(worker, heavy):
    assert worker in module_files(), f"{worker} is missing"
    assert heavy not in modules_reached_from(worker)


@pytest.mark.parametrize("worker", LIGHT_WORKERS)
def test_a_light_worker_loads_without_torch(worker):
    code = f"import sys, {worker}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=PATIENCE)

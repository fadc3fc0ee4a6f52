"""The size and the shape of the package: entries at its top, imports between them, lines.

    python -m benchmarks.house

An entry is a package or a module at the top of ``fusionloader/``. It imports another one if any of
its modules does, also inside functions, but not for type checkers alone. An entry stands one floor
above the highest that it imports. Modules that nobody can place (a circle) have no floor.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PACKAGE = "fusionloader"
GENERATED = {"_native", "_version"}


def entry(module: str) -> str:
    """Returns the entry that a module belongs to."""
    return module.split(".")[1]


def imports_of_entries() -> dict[str, set[str]]:
    """Returns the entries that each entry imports."""
    graph = grimp.build_graph(PACKAGE, exclude_type_checking_imports=True, cache_dir=None)
    modules = [module for module in graph.modules if "." in module]
    found = {entry(module): set[str]() for module in modules if entry(module) not in GENERATED}
    for module in modules:
        for imported in graph.find_modules_directly_imported_by(module):
            if "." in imported and entry(imported) in found and entry(module) in found:
                found[entry(module)].add(entry(imported))
    return {name: imported - {name} for name, imported in found.items()}


def floors(imports: dict[str, set[str]]) -> dict[str, int]:
    """Returns the floor of each entry, the lowest first; those of circles are missing."""
    found: dict[str, int] = {}
    while placed := [
        name for name, imported in imports.items() if name not in found and imported <= found.keys()
    ]:
        found.update(
            {name: 1 + max((found[i] for i in imports[name]), default=0) for name in placed}
        )
    return found


def lines(folder: str, *endings: str) -> int:
    """Returns the lines of a folder's files with these endings."""
    files = [path for path in (ROOT / folder).rglob("*") if path.suffix in endings]
    return sum(len(path.read_text().splitlines()) for path in files)


def main() -> None:
    """Prints the figures as JSON."""
    imports = imports_of_entries()
    placed = floors(imports)
    by_floor = defaultdict(list)
    for name, floor in sorted(placed.items()):
        by_floor[floor].append(name)
    figures = {
        "entries": len(imports),
        "floors": dict(sorted(by_floor.items(), reverse=True)),
        "arrows": sum(map(len, imports.values())),
        "in circles": sorted(imports.keys() - placed.keys()),
        "lines": {
            "fusionloader": lines("fusionloader", ".py"),
            "csrc": lines("csrc", ".cpp", ".hpp", ".cu"),
            "tests": lines("tests", ".py", ".cpp", ".hpp"),
            "benchmarks": lines("benchmarks", ".py"),
        },
    }
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()

"""What is public is written down, can be imported, and is all that examples and pages use."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/reference/api_stability.md").read_text()
RECORD = (ROOT / ".ci/public-api.txt").read_text()
ROW = re.compile(r"^\| `(fusionloader[\w.]*)` \| (.*) \|$", re.MULTILINE)
EXAMPLES = sorted(ROOT.glob("examples/**/*.py"))


def public_names(path):
    """Returns a module's ``__all__``, without importing it; ``None`` if it has none."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    return None


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {
    module_name(path): names
    for path in sorted(ROOT.glob("fusionloader/**/*.py"))
    if (names := public_names(path)) is not None
}


def imported_names(tree):
    """Pairs of a module of the package and a name that is imported from it."""
    return [
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("fusionloader.")
        for alias in node.names
    ]


def private_imports(imported):
    """Returns those of pairs of a module and a name that are not public."""
    return [
        (module, name)
        for module, name in imported
        if name not in MODULES.get(module, ()) and f"{module}.{name}" not in MODULES
    ]


def test_the_page_has_the_names_of_all_modules_that_say_what_is_public():
    listed = {module: set(re.findall(r"`(\w+)`", names)) for module, names in ROW.findall(PAGE)}
    assert listed == MODULES


def test_the_page_says_what_the_record_leaves_out():
    script = ast.parse((ROOT / ".ci/api").read_text())
    returned = next(
        ast.literal_eval(node.value)
        for node in script.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "RETURNED"
    )
    assert returned <= set().union(*MODULES.values())
    listed = re.search(r"objects that calls return \(([^)]*)\)", PAGE)[1]
    assert set(re.findall(r"`(\w+)`", listed)) == returned
    recorded = re.findall(r"^# module (\S+)$", RECORD, re.MULTILINE)
    provisional = PAGE[PAGE.index("Provisional names") : PAGE.index("## Versions")]
    assert set(recorded) == set(MODULES) - {module for module, _ in ROW.findall(provisional)}


@pytest.mark.parametrize(
    "module", ["fusionloader", "fusionloader.data.sources", "fusionloader.observe.trace"]
)
def test_modules_that_load_their_names_late_have_all_of_them(module):
    loaded = importlib.import_module(module)
    assert set(loaded._MODULES) == set(loaded.__all__) == set(dir(loaded)) - {"__version__"}
    for name in loaded.__all__:
        assert getattr(loaded, name).__module__.startswith("fusionloader.")
    with pytest.raises(AttributeError, match="has no attribute 'DataLoader'"):
        _ = loaded.DataLoader


@pytest.mark.parametrize("module", sorted(MODULES))
def test_what_is_public_is_documented(module):
    loaded = importlib.import_module(module)
    for name in sorted(MODULES[module] - {"__version__"}):
        found = getattr(loaded, name)
        if not callable(found) or getattr(found, "__module__", "").startswith("typing"):
            continue
        assert inspect.getdoc(found), name
        for method in vars(found) if inspect.isclass(found) else ():
            if not method.startswith("_") and callable(getattr(found, method)):
                assert inspect.getdoc(getattr(found, method)), f"{name}.{method}"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_imports_nothing_but_public_names(path):
    tree = ast.parse(path.read_text())
    assert private_imports(imported_names(tree)) == []
    private = [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr)
    ]
    assert [name for name in private if not name.startswith("self.")] == []

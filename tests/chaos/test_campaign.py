"""The campaign's own rules: whom it strikes, which limits it lifts, and when a run is over."""

import re
from pathlib import Path

import fusionloader
from chaos.trainer import ROLES

PACKAGE = Path(fusionloader.__file__).parent


def modules_that_are_started():
    """Modules that the package names in a text, and that have a ``main``."""
    found = set()
    for file in PACKAGE.rglob("*.py"):
        for name in re.findall(r'"(fusionloader(?:\.\w+)+)"', file.read_text()):
            module = PACKAGE.joinpath(*name.split(".")[1:]).with_suffix(".py")
            if module.exists() and re.search(r"^def main\(", module.read_text(), re.MULTILINE):
                found.add(name)
    return found


def test_every_role_is_that_of_a_process_and_every_process_has_one():
    assert modules_that_are_started() == set(ROLES)

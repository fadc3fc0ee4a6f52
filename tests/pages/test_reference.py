"""The reference has every public module; the site (test_site.py) every name of them."""

import re

from support.page_code import ROOT
from test_public_names import MODULES

DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))


def names_of_modules():
    """Yields functions that have the name of the module that they are in, which hides them."""
    for module, public in MODULES.items():
        folder = ROOT / module.replace(".", "/")
        for name in public:
            if (folder / f"{name}.py").exists():
                yield f"{module}.{name}.{name}"


def test_the_reference_has_every_public_module_once():
    listed = [name for page in PAGES for name in DIRECTIVE.findall(page.read_text())]
    assert sorted(listed) == sorted([*MODULES, *names_of_modules()])

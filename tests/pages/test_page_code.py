"""Code in pages: each block says what it is, compiles, and imports what there is."""

import ast
import importlib
import importlib.util

import pytest
from support.page_code import PAGES, blocks_of, indented_code, python_blocks
from test_public_names import imported_names, private_imports

LANGUAGES = {"python", "sh", "text", "json", "yaml", "diff", "mermaid"}
WITH_PYTHON = [page for page in PAGES if python_blocks(page)]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page):
    assert indented_code(page) == [], "code between fences says what language it is in"
    unknown = [block.place for block in blocks_of(page) if block.language not in LANGUAGES]
    assert unknown == [], f"after the fence one of {sorted(LANGUAGES)}"


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_every_block_of_python_compiles_and_imports_what_is_there_and_public(page):
    for block in python_blocks(page):
        compile(block.code, block.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        tree = ast.parse(block.code)
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    assert_importable(alias.name, None, block.place)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    assert_importable(node.module, alias.name, block.place)
        assert private_imports(imported_names(tree)) == [], block.place


def assert_importable(module, name, place):
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"pip install {module}, {place}")
    found = importlib.import_module(module)
    if name is not None and not hasattr(found, name):
        importlib.import_module(f"{module}.{name}")

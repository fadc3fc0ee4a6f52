"""Code in pages: each block says what it is, compiles, and imports what there is."""

import ast
import importlib
import importlib.util
import itertools
import re

import pytest
from support.page_code import PAGES, blocks_of, indented_code, prose, python_blocks

LANGUAGES = {"python", "sh", "text", "json", "yaml", "diff", "mermaid"}
WITH_PYTHON = [page for page in PAGES if python_blocks(page)]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page):
    assert indented_code(page) == [], "code between fences says what language it is in"
    unknown = [block.place for block in blocks_of(page) if block.language not in LANGUAGES]
    assert unknown == [], f"after the fence one of {sorted(LANGUAGES)}"


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_every_block_of_python_compiles(page):
    for block in python_blocks(page):
        compile(block.code, block.place, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_what_pages_import_is_there(page):
    for block in python_blocks(page):
        for node in ast.walk(ast.parse(block.code)):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    _check(alias.name, None, block.place)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    _check(node.module, alias.name, block.place)


def _check(module, name, place):
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        pytest.skip(f"pip install {module}")
    found = importlib.import_module(module)
    if name is not None and not hasattr(found, name):
        importlib.import_module(f"{module}.{name}")


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_what_is_not_run_has_a_reason(page):
    reasons = [block.reason for block in python_blocks(page) if block.reason is not None]
    assert all(len(reason.split()) >= 3 for reason in reasons)


@pytest.mark.parametrize("page", PAGES)
def test_lists_and_tables_read_alike_in_the_repository_and_in_the_site(page):
    """The site wants a blank line before a list, and 4 spaces before what goes on in one."""
    lines = prose(page).splitlines()
    for before, line in itertools.pairwise(lines):
        if not before.strip():
            assert not re.match(r" {1,3}\S", line), f"4 spaces before: {line}"
        elif re.match(r"([-*]|\d+\.) ", line):
            assert re.match(r"([-*]|\d+\.) | {2}", before), f"a blank line before: {line}"

"""Links of pages lead to files and headings that are there, and tables are whole."""

import functools
import re
from urllib.parse import urlsplit

import pytest
from support import page_code
from support.page_code import PAGES, ROOT, prose

CODE = re.compile(r"`+[^`\n]*`+")
LINK = re.compile(r"\]\(([^)\s]+)\)")
SOURCE = re.compile(r'(?:src|srcset)="([^"]+)"')
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def targets(page):
    text = prose(page)
    return [*LINK.findall(CODE.sub("", text)), *SOURCE.findall(text)]


def anchors(page):
    """Headings of a page as GitHub names them; those of the same words are numbered."""
    found = []
    for heading in HEADING.findall(prose(page)):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        found.append(f"{name}-{found.count(name)}" if name in found else name)
    return found


def test_headings_are_named_as_github_names_them(tmp_path, monkeypatch):
    page = tmp_path / "page.md"
    page.write_text("# One, two `three`\n\n```sh\n# no heading\n```\n\n## A: b\n\n## A: b\n")
    monkeypatch.setattr(page_code, "ROOT", tmp_path)
    assert anchors("page.md") == ["one-two-three", "a-b", "a-b-1"]


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_links_to_is_there(page):
    for target in targets(page):
        parts = urlsplit(target)
        if parts.scheme:
            assert parts.scheme == "https" and "." in parts.netloc, f"{target}: https://host/..."
            continue
        file = ((ROOT / page).parent / parts.path).resolve() if parts.path else ROOT / page
        assert file.is_relative_to(ROOT) and file.exists(), f"{target} is not there"
        # Pages that are docstrings have the names of modules for anchors, which mkdocs checks.
        if parts.fragment and file.suffix == ".md" and "fusionloader." not in parts.fragment:
            name = file.relative_to(ROOT).as_posix()
            assert parts.fragment in anchors(name), f"{target}: no such heading"


FILE = re.compile(
    r"`((?:fusionloader|csrc|tests|benchmarks|examples|docs|\.github)/[\w./-]+\.\w+)`"
)
NAME = re.compile(r"`([\w.-]+\.(?:py|cpp|hpp))`")
TARGET = re.compile(r"`make (?:campaign NAME=)?([\w-]+)[^`]*`")


@functools.cache
def names_of_files():
    """Names of the project's sources, and of the scripts that pages assume users to have."""
    folders = ("fusionloader", "csrc", "tests", "benchmarks", "examples", "docs")
    found = {path.name for folder in folders for path in (ROOT / folder).rglob("*.*p*")}
    return found | {"setup.py", "train.py"}


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_files_and_targets_that_a_page_names_are_there(page):
    text = (ROOT / page).read_text()
    assert [path for path in FILE.findall(text) if not (ROOT / path).exists()] == []
    assert [name for name in NAME.findall(text) if name not in names_of_files()] == []
    makefile = (ROOT / "Makefile").read_text()
    assert [name for name in TARGET.findall(text) if f"\n{name}:" not in makefile] == []


@pytest.mark.parametrize("page", PAGES)
def test_rows_of_tables_are_on_one_line(page):
    """A row that is wrapped ends its table."""
    rows = [line for line in prose(page).splitlines() if line.lstrip().startswith("|")]
    assert not [row for row in rows if not row.rstrip().endswith("|")]

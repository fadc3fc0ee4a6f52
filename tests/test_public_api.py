"""`make api` says which changes break programs, and `make lint` sees all of them."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import PATIENCE

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / ".ci" / "api"
PACKAGE = """
from fusionloader.inner import Loader as Loader

__all__ = ["Loader"]
"""
INNER = """
class Loader:
    size: int

    def __init__(self, data: str, size: int = 1) -> None: ...

    def close(self) -> None: ...

    def _private(self) -> None: ...
"""
CHANGELOG = """# Changelog

## [0.2.0] - Unreleased

### Added

- Nothing of `Loader.close`.

### Changed

- {changed}

## [0.1.0]

### Removed

- `Loader.close`.
"""


@pytest.fixture
def project(tmp_path):
    """A repository with a package, its record, and a release of both."""
    write(tmp_path, "fusionloader/__init__.py", PACKAGE)
    write(tmp_path, "fusionloader/inner.py", INNER)
    write(tmp_path, "CHANGELOG.md", CHANGELOG.format(changed="Nothing."))
    write(tmp_path, ".ci/public-api.txt", "")
    assert api(tmp_path) == (0, "")
    return tmp_path


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


def api(root, *arguments):
    """Returns the status of the command, and what it has said."""
    command = [sys.executable, str(SCRIPT), "--root", str(root), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    return done.returncode, done.stdout + done.stderr


def release(folder, tag):
    for command in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "All"],
        ["tag", tag],
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)


def test_whatever_changes_is_shown_until_it_is_recorded(project):
    assert api(project, "--check") == (0, "")
    write(project, "fusionloader/inner.py", INNER.replace("size: int = 1", "size: int = 1, /"))
    status, said = api(project, "--check")
    assert status == 1
    assert "+    def __init__(self, data: str, size: int = 1, /)" in said
    assert "run `make api`" in said


def test_what_breaks_no_program_is_recorded(project):
    more = INNER.replace("size: int = 1", "size: int = 1, *, fast: bool = False")
    write(project, "fusionloader/inner.py", more.replace("_private", "_renamed"))
    assert api(project) == (0, "")
    assert "fast: bool = False" in (project / ".ci/public-api.txt").read_text()


@pytest.mark.parametrize(
    "old, new, name, what",
    [
        ("def close", "def end", "Loader.close", "Public object was removed"),
        ("data: str, size: int = 1", "data: str", "Loader", "Parameter was removed"),
        ("size: int = 1", "size: int = 2", "Loader", "default was changed: 1 -> 2"),
    ],
)
def test_what_breaks_programs_is_to_be_in_the_changelog(project, old, new, name, what):
    write(project, "fusionloader/inner.py", INNER.replace(old, new))
    before = (project / ".ci/public-api.txt").read_text()
    status, said = api(project)
    assert status == 1
    assert f"breaks programs: {name}: " in said and what in said
    assert "are not in CHANGELOG.md" in said
    assert (project / ".ci/public-api.txt").read_text() == before
    write(project, "CHANGELOG.md", CHANGELOG.format(changed=f"`{name}` is another."))
    status, said = api(project)
    assert status == 0
    assert f"in CHANGELOG.md: {name}: " in said
    assert api(project, "--check") == (0, "")


def test_after_a_release_changes_are_counted_from_its_tag(project):
    release(project, "v0.1.0")
    write(project, "fusionloader/inner.py", INNER.replace("def close", "def end"))
    (project / ".ci/public-api.txt").write_text("")  # what is recorded does not matter
    status, said = api(project)
    assert status == 1
    assert "breaks programs: Loader.close" in said
    assert "breaking changes since v0.1.0 " in said


@pytest.mark.parametrize("tag, is_read", [(None, True), ("v0.1.0", True), ("v0.2.0", False)])
def test_names_of_versions_that_are_not_released_are_read(project, tag, is_read):
    changelog = CHANGELOG.format(changed="Nothing.").replace(
        "### Changed", "### Names that have changed\n\n- `fusionloader.Loader.close`\n\n### Changed"
    )
    empty = "# Changelog\n\n## [Unreleased]\n\nNothing yet.\n"
    write(project, "CHANGELOG.md", changelog.replace("# Changelog\n", empty, 1))
    if tag is not None:
        release(project, tag)
    write(project, "fusionloader/inner.py", INNER.replace("def close", "def end"))
    status, said = api(project)
    assert status == (0 if is_read else 1)
    assert f"{'in CHANGELOG.md' if is_read else 'breaks programs'}: Loader.close: " in said


def test_a_public_module_that_is_gone_breaks_programs(project):
    write(project, "fusionloader/io.py", '__all__ = ["read"]\n\n\ndef read() -> None: ...\n')
    assert api(project) == (0, "")
    (project / "fusionloader/io.py").unlink()
    status, said = api(project)
    assert status == 1
    assert "breaks programs: io: Public module was removed" in said


def test_a_public_name_that_no_checker_can_see_is_an_error(project):
    write(project, "fusionloader/io.py", '__all__ = ["read"]\n')
    status, said = api(project)
    assert status == 1
    assert "fusionloader.io: __all__ has 'read', which no type checker can see" in said

"""Files of measurements name the code that they measured."""

import subprocess

import pytest

from fusionloader.cli.environment import provenance, source


def git(folder, *arguments):
    command = ["git", "-C", folder, "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clone(tmp_path):
    for name in ("fusionloader", "csrc", "benchmarks/results", "docs"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("1")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "All")
    return tmp_path


def test_the_code_of_a_commit_is_named_by_its_trees(clone):
    code = source(clone)
    assert git(clone, "rev-parse", "HEAD").startswith(code["commit"])
    assert code["trees"]["csrc"] == git(clone, "rev-parse", "HEAD:csrc")
    git(clone, "commit", "-q", "--amend", "-m", "Another name")
    assert source(clone)["trees"] == code["trees"] and source(clone)["commit"] != code["commit"]


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("csrc/file", True),
        ("fusionloader/new.py", True),
        ("benchmarks/file", True),
        ("benchmarks/results/file", False),
        ("docs/file", False),
    ],
)
def test_changes_of_the_code_that_is_measured_are_told(clone, file, counts):
    assert source(clone)["uncommitted"] is False
    (clone / file).write_text("2")
    assert source(clone)["uncommitted"] is counts


def test_an_installed_copy_names_no_code(tmp_path):
    assert source(tmp_path) is None


def test_a_measurement_says_when_where_and_of_what_it_is():
    assert {"date", "source", "versions", "machine"} == set(provenance())

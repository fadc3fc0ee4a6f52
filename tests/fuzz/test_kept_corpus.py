"""The kept corpus is small, and its files have the names that libFuzzer gives them."""

import hashlib
from pathlib import Path

import pytest

CORPUS = Path(__file__).parent / "corpus"
TARGETS = {path.name.removesuffix("_target.cpp") for path in CORPUS.parent.glob("targets/*.cpp")}
MOST_BYTES = 300_000


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_every_target_has_a_corpus_of_differing_files(target):
    files = list((CORPUS / target).iterdir())
    assert files
    for file in files:
        assert file.name == hashlib.sha1(file.read_bytes()).hexdigest()


def test_the_corpus_is_small_and_each_folder_is_a_target_s():
    assert {folder.name for folder in CORPUS.iterdir()} == TARGETS
    assert sum(file.stat().st_size for file in CORPUS.rglob("*") if file.is_file()) <= MOST_BYTES

"""The corpus: same arguments, same files; sizes like ImageNet's; nothing half-made."""

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fusionloader.cli import corpus as corpus_module
from fusionloader.cli.corpus import ensure_corpus
from fusionloader.cli.dead_leaves import CLASSES, paint


def digests(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*.jpg"))
    }


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return ensure_corpus(40, folder=tmp_path_factory.mktemp("small"), processes=2)


def test_the_same_arguments_give_the_same_files_whatever_the_processes(small, tmp_path):
    again = ensure_corpus(40, folder=tmp_path, processes=1)
    assert len(digests(small.root)) == 50
    assert digests(again.root) == digests(small.root)


def test_another_seed_gives_other_files(small, tmp_path):
    other = ensure_corpus(10, seed=1, folder=tmp_path, processes=1)
    assert not set(digests(other.root).values()) & set(digests(small.root).values())


def test_the_layout_is_an_image_folder_with_equal_classes(small):
    for split, images in ((small.train, 40), (small.val, 10)):
        counts = [len(list(folder.iterdir())) for folder in sorted(split.iterdir())]
        assert counts == [images // CLASSES] * CLASSES


def test_files_are_as_large_as_photographs_with_chroma_subsampled(small):
    assert 70e3 < small.mean_bytes < 130e3
    for path in small.train.rglob("*.jpg"):
        with Image.open(path) as image:
            assert image.mode == "RGB"
            assert min(image.size) > 100 and max(image.size) <= 1200
            assert image.layer[0][1:3] == (2, 2)


def test_openimages_like_files_are_larger(tmp_path):
    made = ensure_corpus(10, kind="openimages-like", folder=tmp_path, processes=2)
    assert 200e3 < made.mean_bytes < 320e3


def test_a_second_call_paints_nothing(small, monkeypatch):
    monkeypatch.setattr(corpus_module, "_make", lambda *a: pytest.fail("painted again"))
    assert ensure_corpus(40, folder=small.root.parent) == small


def test_an_interrupted_run_leaves_no_corpus_and_is_done_again(tmp_path, monkeypatch):
    def interrupted(orders, processes):
        orders[0].path.write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(corpus_module, "_paint_all", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ensure_corpus(10, folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len(digests(ensure_corpus(10, folder=tmp_path, processes=1).root)) == 20


def test_what_a_killed_run_left_is_removed(tmp_path):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    name = f"imagenet-like-10-10-seed0-v{corpus_module.VERSION}.partial-{child}"
    (tmp_path / name / "train").mkdir(parents=True)
    made = ensure_corpus(10, folder=tmp_path, processes=1)
    assert list(tmp_path.iterdir()) == [made.root]


def hue_histogram(label: int, number: int) -> np.ndarray:
    """Share of the image's saturation in each of 20 hues."""
    pixels = paint(label, 200, 150, np.random.default_rng([5, label, number]))
    hue, saturation, _ = np.moveaxis(np.asarray(Image.fromarray(pixels).convert("HSV")), 2, 0)
    weights = saturation.astype(float)
    bins = np.bincount(hue.ravel().astype(int) * 20 // 256, weights.ravel(), minlength=20)
    return bins / bins.sum()


def test_the_classes_differ_in_their_hues():
    centres = [np.mean([hue_histogram(c, n) for n in range(8)], 0) for c in range(CLASSES)]
    right = [
        np.argmin(np.abs(np.stack(centres) - hue_histogram(c, n)).sum(1)) == c
        for c in range(CLASSES)
        for n in range(8, 14)
    ]
    assert np.mean(right) > 0.6  # by chance 0.1


def test_bad_arguments_say_what_was_expected(tmp_path):
    with pytest.raises(ValueError, match="at least one image a class"):
        ensure_corpus(3, folder=tmp_path)
    with pytest.raises(ValueError, match="imagenet-like, openimages-like"):
        ensure_corpus(10, kind="paintings", folder=tmp_path)

"""python -m fusionloader show: a sheet of draws beside torchvision's."""

import numpy as np
import pytest
from PIL import Image
from support.images import photo

from fusionloader.__main__ import main

MODULE = """
from torchvision import transforms
policy = transforms.Compose([transforms.Resize((60, 80)), transforms.RandAugment(num_ops=3)])
MODULE = 3
grey = transforms.Compose([transforms.RandomCrop(30), transforms.Grayscale()])
"""


@pytest.fixture
def picture(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_transforms.py").write_text(MODULE)
    photo(np.random.default_rng(0), 120, 90).save("photo.png")
    return "photo.png"


@pytest.mark.parametrize("name", ["policy", "grey"])
def test_a_sheet_is_written_and_all_draws_are_identical(picture, name, capsys):
    assert main(["show", picture, "--transform", f"my_transforms:{name}", "--seed", "3"]) == 0
    out = capsys.readouterr().out
    assert "24 draws" in out and "24 identical, largest difference 0 levels" in out
    with Image.open("show.png") as sheet:
        pixels = np.asarray(sheet)
    assert (pixels != 255).mean() > 0.01


def test_the_usual_transform_is_shown_when_none_is_named(picture, capsys):
    assert main(["show", picture, "--draws", "2", "--output", "two.png"]) == 0
    assert "RandAugment" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.jpg"], "missing.jpg"),
        (["photo.png", "--transform", "my_transforms"], "MODULE:OBJECT"),
        (["photo.png", "--transform", "my_transforms:nothing"], "nothing"),
        (["photo.png", "--transform", "no_such_module:thing"], "no_such_module"),
        (["photo.png", "--transform", "my_transforms:MODULE"], "a transform is called with"),
        (["my_transforms.py"], "cannot identify image"),
        (["photo.png", "--draws", "1", "--output", "sheet.none"], "unknown file extension"),
    ],
)
def test_what_cannot_be_shown_is_said(picture, arguments, message, capsys):
    assert main(["show", *arguments]) == 2
    assert message in capsys.readouterr().err

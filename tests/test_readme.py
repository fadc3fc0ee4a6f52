"""The README and its pictures say what the scripts that draw them say."""

from pathlib import Path

import pytest

from benchmarks import readme_chart
from docs import diagrams
from docs.drawing import DARK, LIGHT

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_readme_has_the_figures_of_its_chart():
    written = [row.replace(" ", "") for row in README.splitlines()]
    for row in readme_chart.table(readme_chart.read_rows()).splitlines()[2:]:
        assert row.replace(" ", "") in written


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_the_pictures_are_those_of_their_scripts(palette):
    chart = readme_chart.draw(readme_chart.read_rows(), palette)
    drawings = {name: draw(palette) for name, draw in diagrams.pictures().items()}
    for name, drawing in {"speed": chart, **drawings}.items():
        assert drawing.path(name).read_text() == drawing.svg(), f"{name}: draw it anew"

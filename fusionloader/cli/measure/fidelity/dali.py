"""DALI's op families, on its CPU backend, against torchvision on Pillow images."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Literal

from PIL import Image

from fusionloader.cli.measure.fidelity.cases import cases, rows
from fusionloader.cli.measure.fidelity.differences import Difference, Pixels, array
from fusionloader.executors.replay import replay
from fusionloader.plan.operations import Operation

if TYPE_CHECKING:
    from fusionloader.executors.dali.families.tasks import FamilyTasks

INSTALL = "pip install 'fusionloader[dali]'"
# What begins a plan, and is done by the head.
_HEAD = ("crop", "resize")


def installed() -> bool:
    """Whether DALI is."""
    return importlib.util.find_spec("nvidia") is not None and (
        importlib.util.find_spec("nvidia.dali") is not None
    )


def family_rows(chosen: dict[str, Image.Image], every: int = 1) -> dict[str, Difference]:
    """The families' differences from torchvision on Pillow images, for every row they can do.

    Cases of a row that they cannot do, such as rotations that make an image larger, are left out.
    """
    families = _Families()
    made = {}
    for row in rows():
        if row.startswith(_HEAD):
            continue
        difference = families.row(row, chosen, every)
        if difference.cases:
            made[row] = difference
    return made


def family_row(row: str, chosen: dict[str, Image.Image], every: int = 1) -> Difference:
    """One of them."""
    return _Families().row(row, chosen, every)


class _Families:
    """The families for images of every size, made when one is met."""

    def __init__(self) -> None:
        from fusionloader.executors.dali.errors import NotOnDali
        from fusionloader.executors.dali.families.tasks import FamilyTasks

        self._not_done, self._kind = NotOnDali, FamilyTasks
        self._made: dict[tuple[int, ...], FamilyTasks] = {}

    def row(self, row: str, chosen: dict[str, Image.Image], every: int) -> Difference:
        difference = Difference()
        for image, operation in self._possible(row, chosen, every):
            ours = self._tasks(array(image)).augment(array(image)[None], [[operation]])
            difference.add(ours[0], array(replay(image, [operation])))
        return difference

    def _possible(
        self, row: str, chosen: dict[str, Image.Image], every: int
    ) -> Iterator[tuple[Image.Image, Operation]]:
        for image, operation in islice(cases(row, chosen), 0, None, every):
            try:
                self._tasks(array(image)).steps([operation])
            except self._not_done:
                continue
            yield image, operation

    def _tasks(self, pixels: Pixels) -> FamilyTasks:
        height, width, channels = pixels.shape
        if pixels.shape not in self._made:
            kind: Literal[1, 3] = 1 if channels == 1 else 3
            self._made[pixels.shape] = self._kind(None, 1, (height, width), kind)
        return self._made[pixels.shape]

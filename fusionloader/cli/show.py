"""The show command: draws of a transform on one image, beside torchvision's for the same draws."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image, ImageDraw

from fusionloader.cli.counts import at_least

if TYPE_CHECKING:  # torch takes seconds to import: arguments are checked before
    from fusionloader.transforms.executors.compiled_plan import CompiledPlan

COLUMNS = 4
SIDE = 224  # the longest side of a picture on the sheet, in pixels
GAP, CAPTION = 8, 44


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("image", type=Path, help="any image that Pillow reads")
    parser.add_argument(
        "--transform",
        metavar="MODULE:OBJECT",
        help="a transform (RandomResizedCrop, flip and RandAugment)",
    )
    parser.add_argument("--draws", type=at_least(1), default=24, help="pairs on the sheet (24)")
    parser.add_argument("--seed", type=int, default=0, help="of the draws (0)")
    parser.add_argument("--output", type=Path, default=Path("show.png"), help="(show.png)")


def run(options: argparse.Namespace) -> int:
    """Writes the sheet and prints the differences; returns 2 if there is nothing to draw."""
    try:
        with Image.open(options.image) as opened:
            image = opened.convert("RGB")
        transform = load(options.transform) if options.transform else usual_transform()
    except (OSError, ImportError, AttributeError, TypeError, ValueError) as error:
        print(f"fusionloader show: {error}", file=sys.stderr)
        return 2
    from fusionloader.transforms.executors.compiled_plan import compile_plan

    plan = compile_plan(transform)
    print(plan.explain())
    if plan.plan.works_on_floats:
        print(
            "fusionloader show: the plan works on floats, of which there is no picture",
            file=sys.stderr,
        )
        return 2
    pairs = [draw_pair(plan, image, options.seed, index) for index in range(options.draws)]
    try:
        contact_sheet(pairs).save(options.output)
    except (OSError, ValueError) as error:
        print(f"fusionloader show: {error}", file=sys.stderr)
        return 2
    differences = [difference(ours, theirs) for ours, theirs, _ in pairs]
    print(
        f"{options.output}: {len(pairs)} draws, each beside torchvision's; "
        f"{differences.count(0)} identical, largest difference {max(differences)} levels"
    )
    return 0


def load(name: str) -> Any:
    """Returns the object named ``module:object``; modules are found in the current folder too.

    Raises:
        ValueError: the name is not of that form.
        ImportError: there is no such module.
        AttributeError: the module has no such object.
        TypeError: the object is no transform.
    """
    module, separator, attribute = name.partition(":")
    if not separator:
        raise ValueError(f"--transform takes MODULE:OBJECT, not {name!r}")
    sys.path.insert(0, "")
    try:
        found: Any = importlib.import_module(module)
    finally:
        sys.path.remove("")
    for part in attribute.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{name} is {found!r}: a transform is called with an image")
    return found


def usual_transform() -> Any:
    """Returns the default transform."""
    from torchvision import transforms

    return transforms.Compose(
        [
            transforms.RandomResizedCrop(SIDE),
            transforms.RandomHorizontalFlip(),
            transforms.RandAugment(),
            transforms.ToTensor(),
        ]
    )


Pair = tuple[Image.Image, Image.Image, str]


def draw_pair(plan: CompiledPlan, image: Image.Image, seed: int, index: int) -> Pair:
    """Returns our picture, torchvision's and a caption, for one draw."""
    from fusionloader.transforms.executors.replay import replay

    operations = plan.draw(*image.size, seed=seed, index=index)
    theirs = replay(image, operations)
    if plan.plan.result_channels == 1:
        theirs = theirs.convert("L")
    return plan.picture(image, operations), theirs, caption(operations)


def caption(operations: Sequence[tuple[Any, ...]]) -> str:
    """Returns the operations' names, with their number where they have just one."""
    words = []
    for name, *arguments in operations:
        number = arguments[0] if arguments and isinstance(arguments[0], float) else None
        words.append(name if number is None else f"{name} {number:.3g}")
    return ", ".join(words)


def difference(ours: Image.Image, theirs: Image.Image) -> int:
    """Returns the largest difference of two pictures of the same size, in levels."""
    import numpy as np

    first, second = (np.asarray(picture, dtype=np.int16) for picture in (ours, theirs))
    return int(np.abs(first - second).max())


def contact_sheet(pairs: Sequence[Pair]) -> Image.Image:
    """Returns all pairs on one picture, ours on the left of each."""
    cell_width, cell_height = 2 * SIDE + 3 * GAP, SIDE + CAPTION + GAP
    rows = -(-len(pairs) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * cell_width, rows * cell_height), "white")
    pen = ImageDraw.Draw(sheet)
    for number, (ours, theirs, text) in enumerate(pairs):
        left = number % COLUMNS * cell_width + GAP
        top = number // COLUMNS * cell_height + GAP
        for column, picture in enumerate((ours, theirs)):
            small = picture.convert("RGB")
            small.thumbnail((SIDE, SIDE))
            sheet.paste(small, (left + column * (SIDE + GAP), top))
        limit = 2 * (2 * SIDE + GAP) // 6
        lines = f"{number}: {text}"[:limit]
        half = len(lines) // 2 if len(lines) > limit // 2 else len(lines)
        pen.text((left, top + SIDE + 4), f"{lines[:half]}\n{lines[half:]}", fill="black")
    return sheet

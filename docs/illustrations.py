"""Pictures of docs/how/design.md: how batches are made, and what is decoded of a file.

``docs.diagrams`` writes them.
"""

from __future__ import annotations

from docs.drawing import Drawing, Palette

# Of the picture of windows: blocks of the image, and those that the crop needs.
COLUMNS, ROWS, CELL = 20, 12, 20
CROP = (6, 3, 13, 8)  # first column and row, last column and row
MARGIN = 1  # blocks around it, from which chroma is interpolated


def batches(palette: Palette) -> Drawing:
    """Returns three batches in time: made by a worker each, and by all workers together."""
    drawing = Drawing(760, 336, "How workers make batches", palette)
    drawing.text(16, 24, "DataLoader: each worker makes a batch of its own", bold=True)
    _timeline(drawing, 44, [[(0, 410, "batch 0")], [(0, 300, "batch 1")], [(0, 340, "batch 2")]])
    _delivered(drawing, 152, [410, 430, 450])
    drawing.text(16, 190, "FusionLoader: all workers make the next batch", bold=True)
    shares = [[(0, 124, "0"), (128, 244, "1"), (248, 354, "2")] for _ in range(3)]
    shares[1] = [(0, 118, "0"), (122, 240, "1"), (244, 350, "2")]
    _timeline(drawing, 210, shares)
    _delivered(drawing, 318, [124, 244, 354])
    return drawing


def _timeline(drawing: Drawing, top: float, workers: list[list[tuple[int, int, str]]]) -> None:
    palette = drawing.palette
    pairs = {"0": palette.cpu, "1": palette.gpu, "2": palette.accent}
    for number, spans in enumerate(workers):
        y = top + 30 * number
        drawing.text(16, y + 17, f"worker {number}", size=12, color=palette.muted)
        for start, end, name in spans:
            drawing.box(96 + start, y, end - start, 24, pairs[name[-1]])
            middle = 96 + (start + end) / 2
            words = name if name.startswith("batch") else f"of batch {name}"
            drawing.text(middle, y + 16, words, size=12, anchor="middle")


def _delivered(drawing: Drawing, y: float, times: list[int]) -> None:
    palette = drawing.palette
    drawing.text(16, y, "delivered", size=12, color=palette.muted)
    drawing.line((96, y - 4), (744, y - 4))
    for number, time in enumerate(times):
        pair = (palette.cpu, palette.gpu, palette.accent)[number]
        drawing.box(96 + time - 5, y - 9, 10, 10, (pair[1], "none"), radius=5)
    drawing.text(96 + times[-1] + 14, y - 9, "batches 0, 1, 2", size=12, color=palette.muted)


def window(palette: Palette) -> Drawing:
    """Returns the blocks of a JPEG, and which of them a crop needs."""
    drawing = Drawing(760, 290, "What a crop needs of a JPEG", palette)
    left, top = 16, 26
    first_column, first_row, last_column, last_row = CROP
    for row in range(ROWS):
        for column in range(COLUMNS):
            inside = (
                first_column - MARGIN <= column <= last_column + MARGIN
                and first_row - MARGIN <= row <= last_row + MARGIN
            )
            below = row > last_row + MARGIN
            pair = (
                palette.cpu if inside else (("none" if below else palette.plain[0]), palette.line)
            )
            x, y = left + column * CELL, top + row * CELL
            drawing.box(x, y, CELL - 2, CELL - 2, pair, radius=1)
    x, y = left + first_column * CELL, top + first_row * CELL
    width = (last_column - first_column + 1) * CELL
    height = (last_row - first_row + 1) * CELL
    for inset in (0, 1, 2):
        drawing.box(
            *(x - 1 + inset, y - 1 + inset, width - 2 * inset, height - 2 * inset),
            ("none", palette.accent[1]),
            radius=1,
        )
    _legend(drawing, left + COLUMNS * CELL + 24, top)
    return drawing


def _legend(drawing: Drawing, x: float, top: float) -> None:
    palette = drawing.palette
    lines = (
        (("none", palette.accent[1]), "the crop that was drawn"),
        (palette.cpu, "decoded to pixels: the crop, and neighbours for its color"),
        ((palette.plain[0], palette.line), "passed over: lengths of codes alone are looked up"),
        (("none", palette.line), "not decoded"),
    )
    for number, (pair, words) in enumerate(lines):
        y = top + 34 + 44 * number
        drawing.box(x, y, 16, 16, pair, radius=1)
        first, _, second = words.partition(": ")
        drawing.text(x + 26, y + 13, first, bold=True)
        drawing.text(x + 26, y + 30, second, size=12, color=palette.muted)

"""The pictures of docs/how/design.md that are no flow charts: queue, batches, window.

``python -m docs.diagrams`` writes them to ``docs/images``, in both palettes.
"""

from __future__ import annotations

from collections.abc import Callable

from docs.drawing import DARK, LIGHT, Drawing, Palette

TINY_BATCHES = 12
CELL, CELL_TOP, LEFT = 50, 96, 60
SLOT_TOP = 236
STATES = ("done",) * 3 + ("cpu",) * 2 + ("waiting",) * 4 + ("gpu",) * 2 + ("done",)
# Tiny-batches whose rows are pointed at.
SHOWN = (3, 10)
# Of the picture of windows: blocks of the image, and those that the crop needs.
COLUMNS, ROWS, BLOCK = 20, 12, 20
CROP = (6, 3, 13, 8)  # first column and row, last column and row
MARGIN = 1  # blocks around it, from which chroma is interpolated


def main() -> None:
    for palette in (LIGHT, DARK):
        for name, draw in pictures().items():
            draw(palette).save(name)


def pictures() -> dict[str, Callable[[Palette], Drawing]]:
    """Returns what draws each picture, by the name of its file."""
    return {"queue": queue, "batches": batches, "window": window}


def queue(palette: Palette) -> Drawing:
    """Returns a mini-batch whose tiny-batches are claimed from both ends."""
    drawing = Drawing(720, 338, "Tiny-batches of a mini-batch, claimed from both ends", palette)
    right = LEFT + TINY_BATCHES * CELL
    drawing.text(
        LEFT, 24, "One mini-batch: tiny-batches of 4 samples, sorted by file size", bold=True
    )
    _claimants(drawing, right)
    for number, state in enumerate(STATES):
        _tiny_batch(drawing, LEFT + number * CELL, number, state)
    y = CELL_TOP + 66
    drawing.text(LEFT, y, "small", size=12, color=palette.muted)
    drawing.text(right, y, "large", size=12, anchor="end", color=palette.muted)
    reserved = right - 4 * CELL
    drawing.line(
        (reserved, CELL_TOP - 8), (reserved, CELL_TOP + 50), color=palette.gpu[1], dash="3 3"
    )
    drawing.text(
        reserved, CELL_TOP - 14, "threshold", size=12, anchor="middle", color=palette.gpu[1]
    )
    _batch_slot(drawing, right)
    return drawing


def _claimants(drawing: Drawing, right: float) -> None:
    palette = drawing.palette
    drawing.box(LEFT, 38, 150, 28, palette.cpu)
    drawing.text(LEFT + 75, 57, "CPU workers", anchor="middle")
    drawing.arrow((LEFT + 150, 52), (LEFT + 4.5 * CELL, 52), (LEFT + 4.5 * CELL, CELL_TOP - 6))
    drawing.box(right - 120, 38, 120, 28, palette.gpu)
    drawing.text(right - 60, 57, "GPU worker", anchor="middle")
    drawing.arrow((right - 120, 52), (right - 2.5 * CELL, 52), (right - 2.5 * CELL, CELL_TOP - 6))


def _tiny_batch(drawing: Drawing, x: float, number: int, state: str) -> None:
    palette = drawing.palette
    pair = _pair(palette, state)
    dash = "4 3" if state == "waiting" else ""
    drawing.box(x + 2, CELL_TOP, CELL - 4, 44, pair, dash=dash)
    # A bar as high as the files are large.
    height = 6 + 2.6 * number
    drawing.box(x + 18, CELL_TOP + 38 - height, 14, height, (pair[1], "none"), radius=2)


def _pair(palette: Palette, state: str) -> tuple[str, str]:
    waiting = ("none", palette.muted)
    return {"done": palette.plain, "cpu": palette.cpu, "gpu": palette.gpu}.get(state, waiting)


def _batch_slot(drawing: Drawing, right: float) -> None:
    palette = drawing.palette
    rows = 4 * TINY_BATCHES
    width = (right - LEFT) / rows
    for place in range(rows):
        # Any order: 17 has no factor in common with 48.
        row = (17 * place + 5) % rows
        number = place // 4
        x = LEFT + row * width
        state = STATES[number]
        fill = "none" if state == "waiting" else _pair(palette, state)[1]
        drawing.box(x, SLOT_TOP, width, 34, (fill, palette.line), radius=0)
        if number in SHOWN:
            start = LEFT + (number + 0.5) * CELL
            drawing.arrow(
                (start, CELL_TOP + 46),
                (x + width / 2, SLOT_TOP - 2),
                color=_pair(palette, state)[1],
            )
    lines = (
        "The batch slot: shared memory, a row a sample, in the sampler's order. Each sample is",
        "written once, into its row. When the last tiny-batch is COMPLETED, the training loop gets",
        "a tensor over the slot: nothing is collated, pickled or copied.",
    )
    for number, words in enumerate(lines):
        drawing.text(LEFT, SLOT_TOP + 56 + 18 * number, words, size=12, color=palette.muted)


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
            x, y = left + column * BLOCK, top + row * BLOCK
            drawing.box(x, y, BLOCK - 2, BLOCK - 2, pair, radius=1)
    x, y = left + first_column * BLOCK, top + first_row * BLOCK
    width = (last_column - first_column + 1) * BLOCK
    height = (last_row - first_row + 1) * BLOCK
    for inset in (0, 1, 2):
        drawing.box(
            *(x - 1 + inset, y - 1 + inset, width - 2 * inset, height - 2 * inset),
            ("none", palette.accent[1]),
            radius=1,
        )
    _legend(drawing, left + COLUMNS * BLOCK + 24, top)
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


if __name__ == "__main__":
    main()

"""All pictures, and those of design.md: ``python -m docs.diagrams`` writes ``docs/images``."""

from __future__ import annotations

from collections.abc import Callable

from docs import flowcharts, illustrations
from docs.drawing import DARK, LIGHT, Drawing, Palette

TINY_BATCHES = 12
CELL, CELL_TOP, LEFT = 50, 96, 60
SLOT_TOP = 236
STATES = ("done",) * 3 + ("cpu",) * 2 + ("waiting",) * 4 + ("gpu",) * 2 + ("done",)
# Tiny-batches whose rows are pointed at.
SHOWN = (3, 10)


def main() -> None:
    """Writes every diagram in both palettes."""
    for palette in (LIGHT, DARK):
        for name, draw in pictures().items():
            draw(palette).save(name)


def pictures() -> dict[str, Callable[[Palette], Drawing]]:
    """Returns what draws each picture, by the name of its file."""
    return {
        "queue": queue,
        "processes": processes,
        "plan": flowcharts.plan,
        "kernel": flowcharts.kernel,
        "tiers": flowcharts.tiers,
        "batches": illustrations.batches,
        "window": illustrations.window,
    }


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


def processes(palette: Palette) -> Drawing:
    """Returns the processes of one rank, and what they share."""
    drawing = Drawing(760, 372, "The processes of a training and what they share", palette)
    _process(
        drawing, 20, 16, 250, 116, palette.accent, "training process",
        ("sampler → indices", "local manager, inside next()", "delivery: host or device batches"),
    )  # fmt: skip
    _process(
        drawing, 490, 16, 250, 116, palette.plain, "global manager",
        ("one per machine and job", "sends idle workers to other ranks", "only under torchrun"),
    )  # fmt: skip
    _process(
        drawing, 20, 262, 250, 94, palette.cpu, "native workers",
        ("a compiled plan, no torch", "decode, transform, write the row"),
    )  # fmt: skip
    _process(
        drawing, 285, 262, 190, 94, palette.cpu, "Python workers",
        ("the user's code", "written into the row"),
    )  # fmt: skip
    _process(
        drawing, 490, 262, 250, 94, palette.gpu, "GPU worker",
        ("the largest samples, in groups", "DALI and a fused CUDA kernel"),
    )  # fmt: skip
    _shared_memory(drawing)
    drawing.arrow((145, 132), (145, 162))
    drawing.text(153, 152, "publishes", size=12, color=palette.muted)
    drawing.arrow((235, 166), (235, 136))
    drawing.text(243, 152, "complete batches", size=12, color=palette.muted)
    for x in (145, 380, 615):
        drawing.arrow((x - 20, 230), (x - 20, 258))
        drawing.arrow((x + 20, 262), (x + 20, 234))
    drawing.text(172, 250, "claim, write", size=12, color=palette.muted)
    drawing.arrow((615, 132), (615, 162))
    drawing.text(623, 152, "assignments", size=12, color=palette.muted)
    return drawing


def _shared_memory(drawing: Drawing) -> None:
    palette = drawing.palette
    drawing.box(20, 166, 720, 64, ("none", palette.muted), dash="5 4")
    drawing.text(32, 185, "shared memory, without names", bold=True)
    parts = (
        "control block: queues, states",
        "batch slots",
        "dataset table",
        "decoded cache, JPEG index",
    )
    x = 32.0
    for words in parts:
        width = 24 + 6.6 * len(words)
        drawing.box(x, 194, width, 26, palette.plain)
        drawing.text(x + width / 2, 211, words, size=12, anchor="middle")
        x += width + 14


def _process(
    drawing: Drawing,
    x: float,
    y: float,
    width: float,
    height: float,
    pair: tuple[str, str],
    name: str,
    lines: tuple[str, ...],
) -> None:
    drawing.box(x, y, width, height, pair)
    drawing.text(x + 14, y + 26, name, size=14, bold=True)
    for number, words in enumerate(lines):
        drawing.text(x + 14, y + 50 + 20 * number, words, size=12)


if __name__ == "__main__":
    main()

"""Diagrams of steps: boxes in rows, and arrows between them; ``docs.diagrams`` writes them."""

from __future__ import annotations

from docs.drawing import Drawing, Palette

HEIGHT = 46
Pair = tuple[str, str]


def plan(palette: Palette) -> Drawing:
    """Returns what becomes of a transform: a plan, a sample's operations, pixels."""
    drawing = Drawing(760, 226, "How a transform becomes pixels", palette)
    step = _Steps(drawing)
    step.box(16, 34, 148, "transform", "a Compose of objects", palette.plain)
    step.box(226, 34, 148, "plan", "typed stages", palette.cpu)
    step.box(436, 34, 148, "operations", "numbers only", palette.cpu)
    step.box(606, 34, 138, "pixels", "native code", palette.cpu)
    step.box(436, 148, 148, "tail", "the rest, in Python", palette.accent)
    step.box(606, 148, 138, "tensor", "a row of the batch", palette.plain)
    drawing.arrow((164, 57), (222, 57))
    drawing.arrow((374, 57), (432, 57))
    drawing.arrow((584, 57), (602, 57))
    drawing.arrow((675, 80), (675, 144))
    drawing.arrow((630, 80), (630, 112), (510, 112), (510, 144), dash="4 3")
    drawing.arrow((584, 171), (602, 171), dash="4 3")
    drawing.arrow((90, 80), (90, 171), (432, 171), dash="4 3")
    step.label(193, 26, "compiled once")
    step.label(403, 26, "drawn for a sample")
    step.label(262, 164, "from the first transform that is not known")
    return drawing


def kernel(palette: Palette) -> Drawing:
    """Returns the way of a launch of the fused kernel."""
    drawing = Drawing(760, 186, "A launch of the fused kernel", palette)
    step = _Steps(drawing)
    step.box(16, 24, 150, "drawn operations", "of each sample", palette.plain)
    step.box(226, 24, 150, "flat structs", "made on the host", palette.cpu)
    step.box(456, 24, 166, "kernel", "a thread block a sample", palette.gpu)
    step.box(456, 116, 166, "pixels of the head", "decoded, resized", palette.gpu)
    step.box(644, 24, 100, "rows", "of the batch", palette.plain)
    drawing.arrow((166, 47), (222, 47))
    drawing.arrow((376, 47), (452, 47))
    drawing.arrow((539, 116), (539, 74))
    drawing.arrow((622, 47), (640, 47))
    step.label(414, 38, "one copy")
    return drawing


def tiers(palette: Palette) -> Drawing:
    """Returns the steps of a sample, and which of them a cache or an index leaves out."""
    drawing = Drawing(760, 214, "What later epochs need not do again", palette)
    step = _Steps(drawing)
    names = ("read", "decode", "crop, augment", "convert")
    notes = ("the file", "what the crop needs", "drawn in each epoch", "to the batch's type")
    left = [16, 206, 396, 586]
    for x, name, note in zip(left, names, notes, strict=True):
        fresh = name in ("crop, augment", "convert")
        step.box(x, 20, 158, name, note, palette.plain if fresh else palette.accent)
    for x in left[1:]:
        drawing.arrow((x - 32, 43), (x - 4, 43))
    rows = (
        ('tier "encoded": bytes in memory', 16, 174),
        ("JPEG index: decoding begins near the crop", 206, 300),
        ('tier "decoded": pixels in memory', 16, 364),
    )
    for number, (words, start, end) in enumerate(rows):
        y = 94 + 38 * number
        drawing.box(start, y, end - start, 10, palette.cpu)
        drawing.text(end + 12, y + 10, words, size=12, color=palette.text)
    drawing.text(16, 206, "A bar covers what is left out.", size=12, color=palette.muted)
    return drawing


class _Steps:
    """Boxes of two lines, and labels of arrows."""

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing

    def box(self, x: float, y: float, width: float, name: str, note: str, pair: Pair) -> None:
        middle = x + width / 2
        self._drawing.box(x, y, width, HEIGHT, pair)
        self._drawing.text(middle, y + 20, name, anchor="middle", bold=True)
        self._drawing.text(middle, y + 37, note, size=12, anchor="middle")

    def label(self, x: float, y: float, words: str) -> None:
        color = self._drawing.palette.muted
        self._drawing.text(x, y, words, size=12, anchor="middle", color=color)

"""Figures as pictures, drawn with Pillow."""

from __future__ import annotations

from collections.abc import Sequence

from PIL import Image, ImageDraw

from fusionloader.cli.simulator.panels import Bars, Lines, SimulationFigure

COLORS = ("#9aa5b1", "#e0a458", "#2f6690", "#7fb069", "#b5446e")
WIDTH, PANEL, MARGIN, TOP = 720, 260, 56, 44
LABELS = 5  # on the vertical axis


def draw(figure: SimulationFigure) -> Image.Image:
    """Returns the figure's panels one below the other, marked as simulated."""
    picture = Image.new("RGB", (WIDTH, TOP + PANEL * len(figure.panels)), "white")
    pen = ImageDraw.Draw(picture)
    pen.text((12, 10), f"{figure.title}  (SIMULATED, not measured)", fill="black")
    for number, panel in enumerate(figure.panels):
        frame = _Frame(pen, TOP + number * PANEL)
        frame.title(panel.title)
        if isinstance(panel, Bars):
            _draw_bars(frame, panel)
        else:
            _draw_lines(frame, panel)
    return picture


class _Frame:
    """A panel's axes: converts values into pixel positions."""

    def __init__(self, pen: ImageDraw.ImageDraw, top: int) -> None:
        self.pen = pen
        self.left, self.right = MARGIN, WIDTH - 20
        self.top, self.bottom = top + 46, top + PANEL - 34
        self._title_top = top + 4
        self._highest = 1.0

    def title(self, text: str) -> None:
        self.pen.text((self.left, self._title_top), text, fill="black")

    def scale(self, highest: float) -> None:
        """Draws the vertical axis from 0 to ``highest``."""
        self._highest = highest or 1.0
        for step in range(LABELS):
            value = self._highest * step / (LABELS - 1)
            y = self.y(value)
            self.pen.line((self.left, y, self.right, y), fill="#dddddd")
            text = f"{value:,.0f}" if self._highest > 4 else f"{value:.2f}"
            self.pen.text((self.left - 6, y - 5), text, fill="#555555", anchor="ra")

    def legend(self, names: Sequence[str]) -> None:
        x = self.left
        for number, name in enumerate(names):
            y = self._title_top + 18
            self.pen.rectangle((x, y + 2, x + 9, y + 11), fill=COLORS[number % len(COLORS)])
            self.pen.text((x + 14, y), name, fill="black")
            x += 34 + int(self.pen.textlength(name))

    def y(self, value: float) -> float:
        return self.bottom - value / self._highest * (self.bottom - self.top)

    def x(self, share: float) -> float:
        return self.left + share * (self.right - self.left)


def _draw_bars(frame: _Frame, panel: Bars) -> None:
    frame.scale(max(1.0, *(value for values in panel.bars.values() for value in values)))
    frame.legend(list(panel.bars))
    width = 0.8 / len(panel.bars) / len(panel.groups)
    for group, name in enumerate(panel.groups):
        start = (group + 0.1) / len(panel.groups)
        for number, values in enumerate(panel.bars.values()):
            left, right = frame.x(start + number * width), frame.x(start + (number + 0.9) * width)
            box = (left, frame.y(values[group]), right, frame.bottom)
            frame.pen.rectangle(box, fill=COLORS[number % len(COLORS)])
        middle = frame.x((group + 0.5) / len(panel.groups))
        frame.pen.text((middle, frame.bottom + 6), name, fill="black", anchor="ma")


def _draw_lines(frame: _Frame, panel: Lines) -> None:
    points = [point for line in panel.lines.values() for point in line]
    furthest = max(x for x, _ in points) or 1.0
    frame.scale(max(y for _, y in points) * 1.05)
    frame.legend(list(panel.lines))
    for position, text in panel.marks:
        x = frame.x(position / furthest)
        frame.pen.line((x, frame.top, x, frame.bottom), fill="#aaaaaa")
        frame.pen.text((x + 4, frame.bottom + 6), text, fill="#555555")
    for number, line in enumerate(panel.lines.values()):
        corners = [(frame.x(x / furthest), frame.y(y)) for x, y in line]
        frame.pen.line(corners, fill=COLORS[number % len(COLORS)], width=2)

"""SVG by hand: a drawing in one of two palettes, for pages that are read in light and in dark."""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parent / "images"
FONT = "-apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


@dataclass(frozen=True, slots=True)
class Palette:
    """Colors by what they mean; those of a pair are the fill of a box and its edge."""

    name: str
    text: str
    muted: str
    line: str
    plain: tuple[str, str]
    cpu: tuple[str, str]
    gpu: tuple[str, str]
    accent: tuple[str, str]


LIGHT = Palette(
    name="light",
    text="#1f2328",
    muted="#59636e",
    line="#d1d9e0",
    plain=("#f6f8fa", "#afb8c1"),
    cpu=("#ddf4ff", "#0969da"),
    gpu=("#fbefff", "#8250df"),
    accent=("#fff1e5", "#bc4c00"),
)
DARK = Palette(
    name="dark",
    text="#f0f6fc",
    muted="#9198a1",
    line="#3d444d",
    plain=("#151b23", "#656c76"),
    cpu=("#0c2d6b", "#58a6ff"),
    gpu=("#3c1e70", "#bc8cff"),
    accent=("#3d1300", "#f0883e"),
)


@dataclass(slots=True)
class Drawing:
    """Shapes on a transparent ground, in pixels from the top left corner."""

    width: int
    height: int
    title: str
    palette: Palette
    shapes: list[str] = field(default_factory=list)

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        size: int = 13,
        anchor: str = "start",
        color: str | None = None,
        bold: bool = False,
    ) -> None:
        """A line of text whose baseline is at ``y``."""
        weight = ' font-weight="600"' if bold else ""
        self.shapes.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"'
            f' fill="{color or self.palette.text}"{weight}>{escape(words)}</text>'
        )

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        pair: tuple[str, str],
        *,
        dash: str = "",
        radius: int = 5,
    ) -> None:
        """A rounded rectangle."""
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}"'
            f' fill="{pair[0]}" stroke="{pair[1]}"{dashed}/>'
        )

    def line(self, *points: tuple[float, float], color: str | None = None, dash: str = "") -> None:
        """Straight lines from point to point."""
        self._path(points, color or self.palette.line, dash, "")

    def arrow(self, *points: tuple[float, float], color: str | None = None, dash: str = "") -> None:
        """Straight lines from point to point, with a head at the last one."""
        self._path(points, color or self.palette.muted, dash, ' marker-end="url(#head)"')

    def _path(
        self, points: tuple[tuple[float, float], ...], color: str, dash: str, head: str
    ) -> None:
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        places = " ".join(f"{x:g},{y:g}" for x, y in points)
        self.shapes.append(
            f'<polyline points="{places}" fill="none" stroke="{color}" stroke-width="1.4"'
            f"{dashed}{head}/>"
        )

    def svg(self) -> str:
        """Returns the drawing as a file's text."""
        head = (
            '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
            f' markerHeight="7" orient="auto"><path d="M0,0 L8,4 L0,8 z"'
            f' fill="{self.palette.muted}"/></marker>'
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}"'
            f' width="{self.width}" height="{self.height}" font-family="{FONT}" role="img">\n'
            f"<title>{escape(self.title)}</title>\n<defs>{head}</defs>\n"
            + "\n".join(self.shapes)
            + "\n</svg>\n"
        )

    def path(self, name: str) -> Path:
        """Returns ``docs/images/name-light.svg`` or ``name-dark.svg``."""
        return IMAGES / f"{name}-{self.palette.name}.svg"

    def save(self, name: str) -> None:
        """Writes the drawing to its path."""
        IMAGES.mkdir(exist_ok=True)
        self.path(name).write_text(self.svg())

"""The README's chart and table, from figures of one commit on one machine.

Run from the root of the repository: ``python -m benchmarks.readme_chart`` writes
``docs/images/speed-*.svg`` and prints the table.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from docs.drawing import DARK, LIGHT, Drawing, Palette

RESULTS = Path(__file__).parent / "results" / "cpu"
BASELINE = "torch-pil"
# Contenders as the chart has them, and the further columns of the table.
BARS = {BASELINE: "DataLoader", "dali-cpu": "DALI on the CPU", "fusionloader": "FusionLoader"}
MORE = {"fusionloader-index": '`jpeg_index="auto"`', "fusionloader-cache": '`DecodedCache("8GiB")`'}
WORKLOADS = {
    "default": ("0.2 megapixels", "crop, flip, normalize"),
    "randaugment": ("0.2 megapixels", "the same with RandAugment"),
    "openimages-default": ("0.75 megapixels", "crop, flip, normalize"),
    "openimages-randaugment": ("0.75 megapixels", "the same with RandAugment"),
}
LEFT, RIGHT, TOP, BAR, GAP = 216, 56, 44, 17, 20


@dataclass(frozen=True, slots=True)
class Row:
    """Samples per second of the baseline, and the ratios of all contenders to it, by name."""

    images: str
    transforms: str
    rate: float
    ratios: dict[str, float]


def main() -> None:
    rows = read_rows()
    for palette in (LIGHT, DARK):
        draw(rows, palette).save("speed")
    print(table(rows))


def read_rows() -> list[Row]:
    """Returns the workloads' rows; raises ValueError if they are not of one commit and machine."""
    rows, origins = [], set()
    for name, (images, transforms) in WORKLOADS.items():
        study = json.loads((RESULTS / f"{name}.json").read_text())
        origins.add((study["source"]["commit"], study["machine"]["cpu"]))
        found = {contender["name"]: contender for contender in study["contenders"]}
        ratios = {name: float(contender["ratio"]) for name, contender in found.items()}
        rows.append(Row(images, transforms, found[BASELINE]["samples_per_second"], ratios))
    if len(origins) != 1:
        raise ValueError(f"the figures should be of one commit and machine, not of {origins}")
    return rows


def draw(rows: list[Row], palette: Palette) -> Drawing:
    """Returns the bar chart: a group a workload, a bar a contender."""
    group = len(BARS) * BAR + GAP
    drawing = Drawing(
        width=760,
        height=TOP + len(rows) * group + 26,
        title="Samples per second as a multiple of DataLoader's",
        palette=palette,
    )
    most = max(row.ratios[name] for row in rows for name in BARS)
    unit = (drawing.width - LEFT - RIGHT) / most
    bottom = TOP + len(rows) * group - GAP + 6
    for tick in range(int(most) + 1):
        x = LEFT + tick * unit
        drawing.line((x, TOP - 6), (x, bottom))
        label = f"{tick}x" if tick else "0"
        drawing.text(x, bottom + 16, label, size=11, anchor="middle", color=palette.muted)
    colors = dict(zip(BARS, (palette.plain[1], palette.cpu[1], palette.accent[1]), strict=True))
    _legend(drawing, colors)
    for number, row in enumerate(rows):
        y = TOP + number * group
        middle = y + len(BARS) * BAR / 2
        drawing.text(LEFT - 12, middle - 2, f"JPEGs of {row.images}", anchor="end", bold=True)
        drawing.text(
            LEFT - 12, middle + 15, row.transforms, size=12, anchor="end", color=palette.muted
        )
        for place, name in enumerate(BARS):
            width, top = row.ratios[name] * unit, y + place * BAR
            drawing.box(LEFT, top + 1, width, BAR - 2, (colors[name], "none"), radius=2)
            drawing.text(
                LEFT + width + 6,
                top + BAR - 4,
                f"{row.ratios[name]:.2f}",
                size=12,
                bold=name == "fusionloader",
            )
    return drawing


def _legend(drawing: Drawing, colors: dict[str, str]) -> None:
    x: float = LEFT
    for name, label in BARS.items():
        drawing.box(x, 12, 12, 12, (colors[name], "none"), radius=2)
        drawing.text(x + 18, 23, label, size=12)
        x += 42 + 7 * len(label)
    color = drawing.palette.muted
    drawing.text(LEFT - 12, 23, "samples per second", size=12, anchor="end", color=color)


def table(rows: list[Row]) -> str:
    """Returns the same figures, and more, as Markdown."""
    columns = {**BARS, **MORE}
    heads = ["JPEGs of", "transforms", "DataLoader, samples/s", *list(columns.values())[1:]]
    lines = [heads, ["---", "---", *["---:"] * (len(heads) - 2)]]
    for row in rows:
        ratios = [_ratio(row.ratios.get(name), name) for name in columns if name != BASELINE]
        lines.append([row.images, row.transforms, f"{row.rate:.0f}", *ratios])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ratio(value: float | None, name: str) -> str:
    if value is None:
        return ""
    text = f"{value:.3g}x" if value >= 10 else f"{value:.2f}x"
    return f"**{text}**" if name == "fusionloader" else text


if __name__ == "__main__":
    main()

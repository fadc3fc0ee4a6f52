"""How large is a report, and how long does it take to make and to open?

Opens it in Chromium, anew each time; ``--pictures FOLDER`` draws the documentation's pictures.
"""

from __future__ import annotations

import argparse
import io
import statistics
import tempfile
import time
from pathlib import Path

from PIL import Image

from benchmarks.browser import chromium
from benchmarks.study import publish
from benchmarks.synthetic_training import training_timeline
from fusionloader.cli.drawn_report.document import drawing_library
from fusionloader.cli.drawn_report.page import report_page

TRACES = {"200 steps, 4 workers": (200, 4), "1,000 steps, 16 workers": (1000, 16)}
LONGEST = {"10,000 steps, 16 workers": (10_000, 16)}
STARVED_MS = 9.0  # of training for each step, at which 16 workers do not keep up
PICTURE = {"width": 1000, "height": 1010}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=7, help="how often each page is opened (7)")
    parser.add_argument("--longest", action="store_true", help="10,000 steps as well")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    parser.add_argument("--pictures", type=Path, help="draw the documentation's pictures there")
    return parser.parse_args()


def opening(browser: object, page: Path) -> tuple[float, float]:
    """Returns the milliseconds until something is seen, and until everything is drawn."""
    tab = browser.new_page(viewport={"width": 1280, "height": 800})  # type: ignore[attr-defined]
    tab.goto(page.as_uri())
    tab.wait_for_selector("html[data-state=drawn]")
    drawn = tab.evaluate("performance.now()")
    seen = tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
    tab.close()
    return seen, drawn


def measured(browser: object, size: tuple[int, int], rounds: int) -> list[str]:
    timeline = training_timeline(*size, training_ms=STARVED_MS)
    begin = time.perf_counter()
    text = report_page(timeline, "run.pftrace")
    made = time.perf_counter() - begin
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "report.html")
        page.write_text(text, encoding="utf-8")
        times = [opening(browser, page) for _ in range(rounds)]
    seen, drawn = ([pair[place] for pair in times] for place in (0, 1))
    return [
        f"{len(timeline.spans):,}",
        f"{len(text.encode()) / 1e6:.2f}",
        f"{made:.1f}",
        f"{statistics.median(seen):.0f}",
        f"{statistics.median(drawn):.0f}",
        f"{min(drawn):.0f}",
    ]


def draw_pictures(browser: object, folder: Path) -> None:
    """Draws the top of a report in light and dark."""
    text = report_page(training_timeline(1000, 16, STARVED_MS), "run.pftrace")
    for scheme in ("light", "dark"):
        tab = browser.new_page(viewport=PICTURE, color_scheme=scheme)  # type: ignore[attr-defined]
        tab.set_content(text)
        tab.wait_for_selector("html[data-state=drawn]")
        picture = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
        picture.quantize(64, dither=Image.Dither.NONE).save(
            folder / f"report-{scheme}.png", optimize=True
        )
        tab.close()


def main() -> None:
    given = options()
    drawing_library()  # made once a process, 0.5 s of it on an idle core
    traces = {**TRACES, **(LONGEST if given.longest else {})}
    with chromium() as browser:
        if given.pictures:
            draw_pictures(browser, given.pictures)
            return
        rows = [[name, *measured(browser, size, given.rounds)] for name, size in traces.items()]
    header = ("trace", "spans", "MB", "made, s", "seen, ms", "drawn, ms", "least drawn, ms")
    publish(given, header, rows)


if __name__ == "__main__":
    main()

"""A real browser to open pages in, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def browser_path() -> str | None:
    """Returns where Chromium or Chrome is, ``None`` if it is not installed."""
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """Yields a headless browser; stops the study where there is none."""
    path = browser_path()
    if path is None:
        raise SystemExit(f"no browser to open pages in: none of {', '.join(NAMES)} was found")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Its sandbox does not work for root in containers; the pages are our own.
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()

"""The site as it is built: complete, from one host, and readable on any screen."""

import os
import re
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.page_code import ROOT
from support.waiting import PATIENCE
from test_public_names import MODULES

from benchmarks.browser import NAMES, browser_path, chromium

pytestmark = pytest.mark.docs
LOADS = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "srcset"}
SHOWN = ["index", "start/will_it_be_fast", "guide/swap_guide", "how/design", "reference/modules"]
WIDE, NARROW = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site that `make docs` has built, or one built now."""
    if built := os.environ.get("FUSIONLOADER_SITE"):
        return ROOT / built
    pytest.importorskip("mkdocs", reason="pip install 'fusionloader[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


class Loaded(HTMLParser):
    """Collects what a page has the browser load."""

    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if given.get("rel") not in ("canonical", "next", "prev") and LOADS.get(tag) in given:
            self.found.append(given[LOADS[tag]])


def test_nothing_is_loaded_from_another_host(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 40
    for page in pages:
        parser = Loaded()
        parser.feed(page.read_text())
        assert parser.found
        assert [url for url in parser.found if re.match(r"(?!data:)\w+:|//", url)] == [], page
    for style in site.rglob("*.css"):
        assert re.findall(r"url\([\"']?(?:https?:)?//", style.read_text()) == [], style


def test_every_public_name_is_in_the_reference(site):
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)
    names = {line.split()[0] for line in zlib.decompress(inventory[4]).decode().splitlines()}
    for module, public in MODULES.items():
        for name in public:
            # A function may be in a module of its name, which hides it.
            assert {f"{module}.{name}", f"{module}.{name}.{name}"} & names, f"{module}.{name}"


@pytest.mark.skipif(browser_path() is None, reason=f"none of {', '.join(NAMES)} is installed")
def test_pages_fit_screens_and_load_without_errors(site):
    said: list[str] = []
    asked: set[str] = set()
    with served(site) as address, chromium() as browser:
        for size in (WIDE, NARROW):
            for scheme in ("light", "dark"):
                page = browser.new_page(viewport=size, color_scheme=scheme)
                page.set_default_timeout(PATIENCE * 1000)
                page.on("pageerror", lambda error: said.append(str(error)))
                page.on("response", lambda response: said.extend(_refused(response)))
                page.on("request", lambda request: asked.add(urlsplit(request.url).netloc))
                for name in SHOWN:
                    assert_page_fits(page, f"{address}/{name}.html", scheme)
                page.close()
        assert_search_finds(browser, address)
    assert said == []
    assert asked == {urlsplit(address).netloc}


def _refused(response) -> list[str]:
    # Requests that the next page cuts off have no response, and are no fault of the site.
    return [] if response.ok or response.status == 304 else [f"{response.status} {response.url}"]


@contextmanager
def served(site: Path) -> Iterator[str]:
    """The address of the site on the loopback device, within the block."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def assert_search_finds(browser, address: str) -> None:
    page = browser.new_page(viewport=WIDE)
    page.set_default_timeout(PATIENCE * 1000)
    page.goto(f"{address}/index.html")
    page.locator(".md-search__input").first.fill("stall_timeout")
    page.wait_for_selector(".md-search-result__item")
    page.close()


def assert_page_fits(page, address: str, scheme: str) -> None:
    page.goto(address)
    body = page.locator("body").get_attribute("data-md-color-scheme")
    assert body == {"light": "default", "dark": "slate"}[scheme]
    wider = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert wider <= 0, f"{address} is {wider} pixels wider than the screen"
    other = {"light": "dark", "dark": "light"}[scheme]
    page.wait_for_function("!document.querySelector('pre.mermaid')")  # the theme draws these
    drawings = page.locator(f".md-content img[src$='#only-{scheme}']")
    assert page.locator(f".md-content img[src$='#only-{other}']").count() == drawings.count()
    for number in range(drawings.count()):
        assert drawings.nth(number).evaluate("image => image.naturalWidth") > 0
        assert drawings.nth(number).is_visible()

"""What `mkdocs` does to pages so that they read alike in the repository and in the site.

Pages link to files outside ``docs/`` (``../examples/resume.py``). In the site each of these is a
page that shows the file, or a list of a folder's files; pages elsewhere (``CHANGELOG.md``) are
pages of the site. A ``<picture>`` follows the system; here it follows the palette's button. Flow
charts are drawn by Mermaid, which the site brings: the theme would load it from another host.
"""

from __future__ import annotations

import ast
import base64
import hashlib
import io
import json
import os
import posixpath
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Pages of other folders, and where they are in the site.
OTHER_PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "examples/README.md": "examples.md",
}
_SOURCES = {uri: path for path, uri in OTHER_PAGES.items()}
SHOWN = "repository"  # the site's folder of files that pages link to
LANGUAGES = {".py": "python", ".json": "json", ".toml": "toml", ".cpp": "cpp", ".hpp": "cpp"}
MOST_BYTES = 200_000  # of a file that is shown

LINK = re.compile(r"(?<!!)\]\((?!\w+:|#|<)([^)\s#]+)(#[^)\s]*)?\)")
PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<alt>[^"]*)" src="(?P<light>[^"]+)">\s*</picture>'
)
FENCED = re.compile(r"^(```+)\w*\n.*?^\1$", re.MULTILINE | re.DOTALL)

# Where the repository is: the site then links to it from its menu. A theme's `repo_url` would have
# each reader's browser ask that host for numbers.
REPOSITORY_VARIABLE = "FUSIONLOADER_REPOSITORY"

MERMAID = "https://registry.npmjs.org/@mermaid-js/tiny/-/tiny-11.17.2.tgz"
MERMAID_SHA512 = (
    "PmFr1c5cSfNf5AngLLR98DrbvR4U5KeD7I+hQkGqG5w5Veu3QT4dG0qu9f99cpn/sKj2XxRBK0q7EL6hr9NY/A=="
)
MERMAID_URI = "scripts/mermaid.js"  # in the site


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the repository to the menu, if the environment says where it is."""
    if url := os.environ.get(REPOSITORY_VARIABLE):
        assert config.nav is not None
        config.nav.append({"Repository": url})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of other folders, and one for each file that a page links to."""
    for name, uri in OTHER_PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text()))
    waiting = [file for file in files.documentation_pages() if file.src_uri.endswith(".md")]
    while waiting:
        page = waiting.pop()
        for target, _ in LINK.findall(_without_code(page.content_string)):
            path = _in_repository(page.src_uri, target)
            uri = _uri(path)
            if path.startswith("docs/") or files.get_file_from_path(uri) is not None:
                continue
            if (ROOT / path).exists():
                made = File.generated(config, uri, content=_shown(path))
                files.append(made)
                waiting.append(made)
    files.append(File.generated(config, MERMAID_URI, content=_mermaid()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrites links and pictures of a page."""
    source = page.file.src_uri
    kept: list[str] = []

    def keep(found: re.Match[str]) -> str:
        kept.append(found[0])
        return f"\0{len(kept) - 1}\0"

    def link(found: re.Match[str]) -> str:
        uri = _uri(_in_repository(source, found[1]))
        relative = posixpath.relpath(uri, posixpath.dirname(source) or ".")
        return f"]({relative}{found[2] or ''})"

    text = FENCED.sub(keep, markdown)
    text = PICTURE.sub(_picture, LINK.sub(link, text))
    return re.sub("\0(\\d+)\0", lambda found: kept[int(found[1])], text)


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Loads Mermaid in pages with a flow chart."""
    if '<pre class="mermaid">' not in html:
        return html
    script = posixpath.relpath(MERMAID_URI, posixpath.dirname(page.file.dest_uri) or ".")
    return f'<script src="{script}"></script>\n{html}'


def _mermaid() -> str:
    """Returns Mermaid's script, which is downloaded once, to ``build/``."""
    kept = ROOT / "build" / posixpath.basename(MERMAID)
    if not kept.exists():
        with urlopen(MERMAID, timeout=60) as answer:
            packed = answer.read()
        digest = base64.b64encode(hashlib.sha512(packed).digest()).decode()
        if digest != MERMAID_SHA512:
            raise PluginError(f"{MERMAID} has SHA-512 {digest}, not {MERMAID_SHA512}")
        kept.parent.mkdir(exist_ok=True)
        kept.write_bytes(packed)
    with tarfile.open(fileobj=io.BytesIO(kept.read_bytes())) as package:
        script = package.extractfile("package/dist/mermaid.tiny.js")
        assert script is not None
        return script.read().decode()


def _picture(found: re.Match[str]) -> str:
    return "".join(f"![{found['alt']}]({found[name]}#only-{name})" for name in ("light", "dark"))


def _without_code(text: str) -> str:
    return FENCED.sub("", text)


def _in_repository(page: str, target: str) -> str:
    """Returns what a link of a page leads to, as a path in the repository."""
    if page.startswith(f"{SHOWN}/"):
        folder = posixpath.dirname(page.removeprefix(f"{SHOWN}/"))
    elif page in _SOURCES:
        folder = posixpath.dirname(_SOURCES[page])
    else:
        folder = posixpath.dirname(f"docs/{page}")
    return posixpath.normpath(posixpath.join(folder, target))


def _uri(path: str) -> str:
    """Returns where the site has a path of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == "README.md":
        return "index.md"
    if path in OTHER_PAGES:
        return OTHER_PAGES[path]
    if path.endswith(".md"):
        return f"{SHOWN}/{path}"
    if (ROOT / path).is_dir():
        return f"{SHOWN}/{path}/index.md"
    return f"{SHOWN}/{path}.md"


def _about(file: Path) -> str:
    """Returns the first line of a script's docstring."""
    if file.suffix != ".py":
        return ""
    return (ast.get_docstring(ast.parse(file.read_text())) or "").partition("\n")[0]


def _cells(notebook: dict[str, Any]) -> Iterator[str]:
    """Yields the cells of a notebook: text, code, and what the code has shown."""
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        yield source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```"
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                png = "".join(data["image/png"]).replace("\n", "")
                yield f'<img alt="what the cell shows" src="data:image/png;base64,{png}">'
            else:
                text = "".join(data.get("text/plain", output.get("text", "")))
                yield f"```text\n{text.rstrip()}\n```"


def _shown(path: str) -> str:
    """Returns the page that shows a file, or a folder's files."""
    place = ROOT / path
    title = f"---\ntitle: {path}\nsearch:\n  exclude: true\n---\n\n"
    if place.is_dir():
        files = [each for each in sorted(place.iterdir()) if each.is_file()]
        rows = "".join(f"| [{each.name}]({each.name}) | {_about(each)} |\n" for each in files)
        return f"{title}# {path}\n\n| file | |\n| --- | --- |\n{rows}"
    text = place.read_text()
    if path.endswith(".md"):
        return title + text
    if path.endswith(".ipynb"):
        return title + "\n\n".join(_cells(json.loads(text)))
    if len(text) > MOST_BYTES:
        text = text[:MOST_BYTES] + "\n... cut off here: the repository has the rest\n"
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text)), 3)
    language = LANGUAGES.get(place.suffix, "text")
    return f"{title}# {path}\n\n{fence}{language}\n{text.rstrip()}\n{fence}\n"

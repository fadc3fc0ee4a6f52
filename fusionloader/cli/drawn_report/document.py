"""One HTML file with all that it needs: style, data, and the library that draws.

Its policy lets the two scripts run that are written here and no other, and lets nothing be loaded:
whatever a trace has in its texts, it stays text.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path

from fusionloader.cli.drawn_report.analysis.words import percent

_FILES = Path(__file__).parent / "files"
_EXPORT = "window.vegaEmbed = vegaEmbed;"  # what the page's script uses of the library


def document(charts: Mapping[str, object], **values: object) -> str:
    """Returns the page.

    Args:
        charts: what to draw, by name of the element.
        values: values for the template, ``files/page.html``.

    Raises:
        ImportError: a package is missing; the message says which to install.
    """
    try:
        import jinja2
    except ImportError as error:
        raise _missing("jinja2") from error
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= {"code": _with_code, "percent": percent}
    scripts = [drawing_library(), (_FILES / "page.js").read_text()]
    return environment.from_string((_FILES / "page.html").read_text()).render(
        values,
        charts=charts,
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
        style=(_FILES / "page.css").read_text(),
    )


@functools.cache
def drawing_library() -> str:
    """Returns JavaScript: Vega-Lite, with Vega and Vega-Embed. It takes a second or two to bundle.

    Raises:
        ImportError: the package that has it is missing.
    """
    try:
        import vl_convert
    except ImportError as error:
        raise _missing("vl-convert-python") from error
    bundle = str(vl_convert.javascript_bundle(_EXPORT))
    # Within a script an HTML parser looks for nothing but its end.
    return re.sub("</(?=script)", r"<\\/", bundle, flags=re.IGNORECASE).replace("<!--", r"<\!--")


def _missing(package: str) -> ImportError:
    return ImportError(
        f"a report needs {package}, which is not installed: pip install 'fusionloader[report]'"
    )


def _hash(script: str) -> str:
    """Returns what the page's policy calls a script by."""
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _with_code(text: str) -> object:
    """Returns a sentence as HTML, with what is between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704 - escaped here

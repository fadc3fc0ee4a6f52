"""The page about sources shows the code of the example that is run."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_has_the_example_s_source():
    page = (ROOT / "docs/guide/sources.md").read_text()
    script = (ROOT / "examples/own_source.py").read_text()
    begin = page.index("<!-- from examples/own_source.py -->\n") + 37
    shown = re.match(r"```python\n(.*?)```", page[begin:], re.DOTALL)[1].strip()
    assert shown in script
    assert len(script[: script.index("def write_records")].splitlines()) < 60

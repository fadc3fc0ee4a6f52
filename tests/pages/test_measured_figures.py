"""Each measured figure of a page is in the file of results that the page names for it.

A footnote links the files, as ``[collate](../../benchmarks/results/cpu/collate.json)``. It holds
for the paragraph or item that refers to it, and for tables that follow. A row may link its file.
"""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from statistics import median

import pytest

from benchmarks.figures import RESULTS, ROOT, command_of, pages, state_of, unrecorded
from fusionloader.cli.environment import source

PAGES = [page for page in pages() if page.name != "fidelity.md"]  # a script writes that one whole
FILE = re.compile(r"benchmarks/results/([\w/-]+\.json)")
NUMBER = r"\d[\d,]*(?:\.\d+)?"
# What a unit may be in a file: seconds for ms, shares for percent.
SCALES = {
    "times": (1,),
    "%": (100, 1),
    "s": (1, 1e-3),
    "ms": (1, 1e3),
    "µs": (1, 1e3, 1e6),
    "KB": (1, 1e-3),
    "MB": (1, 1e-6),
    "GB": (1, 1e-3, 1e-9),
    "": (1, 1e3, 100),  # of a cell: its column says the unit
}
FIGURE = re.compile(
    rf"(?<![\w.,/~-])({NUMBER}) ?(x\b(?! \d)|times\b|µs|us\b|ms\b|s\b|seconds\b|MB\b|GB\b|KB\b|%)"
)
CELL = re.compile(rf" *\**[-+]?({NUMBER})(x| ms| µs| s| MB|%)?\** *")
NAMES = {"x": "times", "us": "µs", "seconds": "s", None: ""}
# What reads like a measurement, among all numbers with a unit: most others are settings and limits.
MEASURED = re.compile(
    rf"(?<![\w.])(?:{NUMBER}(?: ?(?:µs|us)\b| times (?:as|that|the)\b|x\b)|\d+\.\d+ (?:ms|s)\b"
    rf"|(?:takes?|took|costs?|uses|used|made|had|came)(?: about| some| only)? {NUMBER}"
    rf" ?(?:ms\b|s\b|seconds\b|[KMG]B\b|%|times\b))"
)
MEASURED_COLUMN = re.compile(
    r"(?<!expected )\b(?:samples/s|images/s|ms|µs|seconds|times)\b(?! expected)"
)
WITHOUT_RECORD = "code not on record"
# Settings, limits, and what is computed or simulated.
NO_MEASUREMENTS = (
    "at least 0.5 s",
    "every 0.02 s",
    "takes 5 s of processor time",
    "no batch for 60 s. worker 0 (pid 4711) at index 17 for 58.0 s",
    "2 to 12 times as fast as one of them",
    "up to 0.1 s later",
    "take 1.1 GB instead of 4.3",
    "ended within 0.1 s",
    "at least 1.1 times as fast",
    "0.7 s of round trip",
    "had looked like 1.6 times",
    "30 µs of CPU time and 0.12 ns a byte, 102 µs for four images",
    "20 Gb/s and 0.2 ms",
    "pauses for 50 times as long",
    "cost 30 %",
    "was up to 1.46 times that with a limit",
)


def test_no_page_states_a_figure_without_a_file():
    found = [
        f"{page.name}: {figure} in {text[:60]!r}"
        for page in PAGES
        for text, head, files in statements(page)
        if not files
        for figure in measured(text, head)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_figures_are_those_of_their_files(page):
    wrong = [
        f"{number} {unit} is not in {', '.join(sorted(files))}"
        for text, _, files in statements(page)
        for number, unit in (figures(text) if files else ())
        if not is_one_of(number, unit, {value for name in files for value in values_of(name)})
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_of_which_files_the_code_is_not_known(page):
    text = " ".join(page.read_text().split())
    for name in FILE.findall(text):
        study = json.loads((RESULTS / name).read_text())
        said = re.search(rf"{re.escape(name)}\)[^|.;]*{WITHOUT_RECORD}", text) is not None
        assert said == bool(unrecorded(study)), f"{name}: {unrecorded(study) or 'is on record'}"


def test_a_figure_that_is_not_in_the_file_is_found():
    values = {0.0615, 3.36, 5.92, 1234.4, 2_600_000.0}
    for figure in (("62", "ms"), ("3.4", "times"), ("5.92", "times"), ("1,234", ""), ("2.6", "MB")):
        assert is_one_of(*figure, values)
    for figure in (("63", "ms"), ("3.5", "times"), ("5.93", "times"), ("1,235", ""), ("2.7", "MB")):
        assert not is_one_of(*figure, values)


def test_each_file_is_listed_with_its_pages():
    command = [sys.executable, "-m", "benchmarks.figures", "default", "imread-campaign"]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    default, campaign, last = done.stdout.splitlines()
    assert default.startswith("default          ") and "; README.md, docs/guide/" in default
    assert campaign == (
        "imread-campaign  measured code that is in no history; docs/how/benchmarks.md"
    )
    assert last.endswith("of 2 files are not of this code")


def test_a_file_is_old_if_its_code_is_another_or_not_known():
    code = source()
    if code is None:
        pytest.skip("there is no git here")
    code["uncommitted"] = False
    other = {**code, "trees": {**code["trees"], "csrc": "0" * 40}}
    assert state_of({"source": code}) == ""
    assert state_of({"source": other}) == "changed since: csrc (0 commits)"
    assert (
        state_of({"source": {**code, "uncommitted": True}}) == "measured with uncommitted changes"
    )
    assert state_of({"source": {**code, "trees": None}}) == "measured code that is in no history"
    assert state_of({"source": None}) == "measured code that is in no history"


def test_a_file_says_how_it_is_measured_anew():
    file = RESULTS / "cpu/tracing.json"
    common = {"data": None, "workers": 0, "start_method": "spawn"}
    options = ["--workers", "0", "--start-method", "spawn"]
    written = ["--json", "benchmarks/results/cpu/tracing.json"]
    assert command_of(file, {"flags": {**common, "longest": True, "lengths": [1, 2]}}) == [
        *("-m", "benchmarks.tracing", *options, "--longest", "--lengths", "1,2", *written)
    ]
    tiny = {**common, "workload": "tiny", "contenders": ["a", "b"]}
    assert command_of(RESULTS / "cpu/tiny.json", {"flags": tiny}) == [
        *("-m", "fusionloader", "bench", *options, "--workload", "tiny"),
        *("--contenders", "a,b", "--json", "benchmarks/results/cpu/tiny.json"),
    ]
    assert command_of(file, {"flags": {**common, "data": "train"}}) is None
    part = RESULTS / "cpu/breadth-part.json"
    assert command_of(part, {"flags": {"only": ["frames"]}}) == [
        *("-m", "benchmarks.breadth", "--only", "frames"),
        *("--json", "benchmarks/results/cpu/breadth-part.json"),
    ]
    assert command_of(file, {}) is None


def statements(page: Path) -> list[tuple[str, str, set[str]]]:
    """Returns paragraphs, items, footnotes and rows, each with its table's head and its files."""
    text = page.read_text()
    for code in (
        r"^ *```.*?^ *```",
        r"<!-- measured: .*?<!-- end -->",
        r"<[^<>\n]*>",
        r"`[^`\n]*`",
    ):
        text = re.sub(code, "`", text, flags=re.DOTALL | re.MULTILINE)
    notes: dict[str, str] = {}

    def note(found: re.Match[str]) -> str:
        notes[found[1]] = " ".join(found[2].split())
        return ""

    text = re.sub(r"^\[\^(\w+)\]: (.*(?:\n+    .*)*)", note, text, flags=re.MULTILINE)
    found = [(body, "", set(FILE.findall(body))) for body in notes.values()]
    files: set[str] = set()
    for block in re.split(r"\n\s*\n|\n(?= *(?:-|\d+\.) )", text):
        rows = block.strip().startswith("|")
        own = {
            name
            for reference in re.findall(r"\[\^(\w+)\]", block)
            for name in FILE.findall(notes[reference])
        }
        files = own or files if rows else own | set(FILE.findall(block))
        head, *parts = block.strip().splitlines() if rows else ["", " ".join(block.split())]
        found += [(part, head, set(FILE.findall(part)) or files) for part in parts]
    return [(without_links(part), head, names) for part, head, names in found]


def without_links(text: str) -> str:
    """Returns a text without the words of links to other sections, which have the figures."""
    return re.sub(r"\[[^]]*\]\([^)]*(?:\.md)?(?:#[^)]*)?\)", "", text)


def measured(text: str, head: str) -> list[str]:
    """Returns what reads like a measurement; in a table the column's head may say so."""
    for phrase in NO_MEASUREMENTS:
        text = text.replace(phrase, "")
    found = [figure[0] for figure in MEASURED.finditer(text)]
    cells = zip(head.split("|"), text.split("|"), strict=False)
    return found + [
        cell.strip()
        for name, cell in cells
        if MEASURED_COLUMN.search(name) and CELL.fullmatch(cell)
    ]


def figures(text: str) -> list[tuple[str, str]]:
    """Returns numbers and their units."""
    if text.startswith("|"):
        cells = [CELL.fullmatch(cell) for cell in text.strip("|").split("|")[1:]]
        found = [(cell[1], (cell[2] or "").strip() or None) for cell in cells if cell]
    else:
        found = [(figure[1], figure[2]) for figure in FIGURE.finditer(text)]
    return [(number, NAMES.get(unit, unit)) for number, unit in found]


@cache
def values_of(name: str) -> set[float]:
    """Returns the figures of a file: those of its table and its medians, not of single rounds."""
    study = json.loads((RESULTS / name).read_text())
    return set(numbers({key: value for key, value in study.items() if key != "versions"}))


def numbers(value, outer=True):
    if isinstance(value, dict):
        for key, each in value.items():
            if not isinstance(each, list):
                yield from numbers(each, outer=False)
            elif outer and all(isinstance(one, (int, float)) for one in each):
                yield from (median(each), min(each), max(each)) if each else ()
            elif (outer and key in ("table", "contenders")) or any(
                isinstance(one, str) for one in each
            ):
                for one in each:
                    yield from numbers(one, outer=False)
    elif isinstance(value, str):
        yield from (float(number.replace(",", "")) for number in re.findall(NUMBER, value))
    elif isinstance(value, (int, float)):
        yield float(value)


def is_one_of(number: str, unit: str, values: set[float]) -> bool:
    """Whether a file has a figure, rounded as the page rounds it."""
    digits = number.replace(",", "")
    step = 10.0 ** -len(digits.partition(".")[2])
    if "." not in digits and digits.endswith("0"):
        step = 10.0 ** (len(digits) - max(len(digits.rstrip("0")), 2))
    candidates = {abs(value * scale) for value in values for scale in SCALES[unit]}
    return any(abs(value - float(digits)) <= 0.5001 * step for value in candidates)

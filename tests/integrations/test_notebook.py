"""The notebook runs from its first cell to its last, and what is kept of it is small."""

import ast
import base64
import json
import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples/tour.ipynb"
CELLS = json.loads(NOTEBOOK.read_text())["cells"]
CODE = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]


def test_the_notebook_is_small_executed_and_of_no_machine():
    assert NOTEBOOK.stat().st_size < 300_000
    counts = [cell["execution_count"] for cell in CELLS if cell["cell_type"] == "code"]
    assert counts == list(range(1, len(CODE) + 1))
    assert not re.search(r"/(home|root|tmp|work|Users)/", NOTEBOOK.read_text())
    assert '"output_type": "error"' not in NOTEBOOK.read_text()


def test_the_notebook_imports_public_names():
    imported = {
        node.module: {alias.name for alias in node.names}
        for node in ast.walk(ast.parse("\n".join(CODE)))
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith("fusionloader.")
    }
    assert imported == {
        "fusionloader": {"FusionLoader"},
        "fusionloader.observe.trace": {"read_timeline"},
    }


@pytest.mark.examples
def test_the_notebook_runs_from_scratch(monkeypatch, tmp_path):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # no images of an earlier run
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    options = {"resources": {"metadata": {"path": str(NOTEBOOK.parent)}}, "record_timing": False}
    nbclient.NotebookClient(notebook, timeout=120, **options).execute()
    if kept := os.environ.get("FUSIONLOADER_NOTEBOOK"):  # with its outputs, to be committed
        nbformat.write(notebook, kept)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    said = "".join(output.get("text", "") for output in outputs)
    assert "RandAugment(" in said and ": native\n" in said
    assert re.search(r"decode +\d+\.\d ms +\d+%", said)
    assert "5 batches before, 8 after; the same as without interruption: True" in said
    data = [output.get("data", {}) for output in outputs]
    pictures = [each["image/png"] for each in data if "image/png" in each]
    assert len(pictures) == 3
    assert all(base64.b64decode(each).startswith(b"\x89PNG") for each in pictures)
    assert any("<table" in each.get("text/html", "") for each in data)

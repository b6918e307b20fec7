"""The notebook of the docs runs from its first to its last cell."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "notebook.ipynb"


@pytest.mark.slow
def test_the_notebook_runs_in_two_minutes_and_shows_its_pictures(tmp_path: Path) -> None:
    reason = "NO TEST OF THE NOTEBOOK: nbclient is missing. Run `sh scripts/slow_tests.sh`."
    nbclient, nbformat = pytest.importorskip("nbclient", reason=reason), pytest.importorskip("nbformat", reason=reason)
    pytest.importorskip("ipykernel", reason=reason)
    notebook = nbformat.read(NOTEBOOK, 4)
    began = time.perf_counter()
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert time.perf_counter() - began < 120 * 3  # measured: less than half a minute; a busy machine is slower
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    assert not [output for output in outputs if output.output_type == "error"]
    html = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert sum("data:image/png" in text for text in html) == 4
    assert any("<table" in text for text in html)


def test_the_notebook_has_fifteen_cells_and_no_stored_output() -> None:
    import json

    cells = json.loads(NOTEBOOK.read_text())["cells"]
    assert len(cells) == 15
    assert not any(cell.get("outputs") for cell in cells)

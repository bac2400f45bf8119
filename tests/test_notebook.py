"""docs/family.ipynb runs, and is kept without what it printed."""

import json
from pathlib import Path

import pytest

from tests.demo import demo_folder  # noqa: F401 (a fixture)

FILE = Path(__file__).parent.parent / "docs" / "family.ipynb"


def test_it_is_kept_without_outputs():
    code = [cell for cell in json.loads(FILE.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert code
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    assert FILE.stat().st_size < 30_000


@pytest.mark.slow
@pytest.mark.usefixtures("demo_folder")
def test_it_runs(tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(FILE, as_version=4)
    nbformat.validate(notebook)
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert "numba: " in printed
    assert "deberta-v3-base" in printed

"""The notebooks in docs/ run; family.ipynb is kept without what it printed, first-steps.ipynb with it."""

import contextlib
import io
import json
import sys
from pathlib import Path

import pytest

from tests.demo import demo_folder  # noqa: F401 (a fixture)

DOCS = Path(__file__).parent.parent / "docs"
FILE, FIRST_STEPS = DOCS / "family.ipynb", DOCS / "first-steps.ipynb"
sys.path.insert(0, str(DOCS))
from notebooks import notebook_page, printed  # noqa: E402


def code_of(file):
    return [cell for cell in json.loads(file.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_family_is_kept_without_outputs():
    assert (code := code_of(FILE))
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code)
    assert FILE.stat().st_size < 30_000


@pytest.mark.parametrize("file", [FILE, FIRST_STEPS], ids=lambda file: file.stem)
def test_page_of_a_notebook_has_all_cells(file):
    page = notebook_page(file)
    assert page.startswith("# ")
    assert f"]({file.name})" in page
    assert page.count("```python") == len(code_of(file))
    assert page.count("```text") == sum(bool(cell["outputs"]) for cell in code_of(file))
    for cell in json.loads(file.read_text("utf-8"))["cells"]:
        assert "".join(cell["source"]).strip().rpartition("\n")[2] in page


@pytest.mark.slow
@pytest.mark.usefixtures("demo_folder")
@pytest.mark.filterwarnings("ignore:.*newly initialised")
def test_first_steps_print_what_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__main__"}
    for number, cell in enumerate(code_of(FIRST_STEPS)):
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
        assert output.getvalue() == printed(cell), f"cell {number}"


@pytest.mark.slow
@pytest.mark.usefixtures("demo_folder")
def test_family_runs(tmp_path, monkeypatch):
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

"""The site as MkDocs builds it (pip install -e ".[docs]"), and as Chromium shows it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import browser

REPOSITORY = Path(__file__).parent.parent
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site; every warning of the build is an error."""
    pytest.importorskip("mkdocs", reason="MkDocs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr
    return folder


def test_no_page_fetches_anything_from_elsewhere(site):
    tags = r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//"
    fetched = re.compile(tags + r"|<link\b(?=[^>]*stylesheet)[^>]*//")
    for page in site.rglob("*.html"):
        assert not fetched.search(page.read_text(encoding="utf-8")), page
    assert "@import" not in (site / "site.css").read_text(encoding="utf-8")


def test_what_a_function_returns_is_one_item(site):
    """A "Returns" of several lines is not a list of them."""
    page = (site / "api" / "kernels" / "index.html").read_text(encoding="utf-8")
    found = re.findall(r"Returns:</span></p>\s*<ul>(.*?)</ul>", page, flags=re.DOTALL)
    assert len(found) > 20
    assert all(items.count("doc-section-item") == 1 for items in found)


def test_options_of_commands_are_found_by_the_search(site):
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    found = {each["location"]: each["text"] for each in index["docs"]}
    assert "--max-answer-len" in found["commands/#bertcore-answer"]
    assert "--gradient-accumulation-steps" in found["commands/#bertcore-finetune"]


def test_notebooks_are_pages_and_files(site):
    for name in ("first-steps", "family"):
        assert (site / name / "index.html").exists()
        assert (site / f"{name}.ipynb").exists()


@pytest.mark.skipif(browser.chromium() is None, reason="Chromium is not on PATH")
def test_nothing_is_cut_or_too_wide(site):
    """All code and all tables fit at 1280 px; at 400 px only these scroll."""
    assert set(browser.measure(site, 1280)) == set(browser.pages_of(site))
    assert browser.problems(site) == []


@pytest.mark.skipif(browser.chromium() is None, reason="Chromium is not on PATH")
def test_browser_finds_what_is_cut(tmp_path):
    (tmp_path / "index.html").write_text(
        "<article><pre><code style='display:block;width:200px;overflow:auto'>" + "x" * 99 + "</code></pre>"
        "<p style='width:1500px'>wide</p></article>",
        encoding="utf-8",
    )
    found = browser.problems(tmp_path)
    assert [line.split(":")[0] for line in found] == [
        "/ is wider than 1280 px",
        "/ cuts at 1280 px",
        "/ is wider than 400 px",
    ]
    browser.take_pictures(tmp_path, tmp_path / "pictures")
    assert {file.name for file in (tmp_path / "pictures").iterdir()} == {
        f"index-{width}{scheme}.png" for width in (1280, 400) for scheme in ("", "-dark")
    }

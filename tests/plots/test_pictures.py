"""The pictures of the documentation: each stands on a page, with a text for those who cannot see it."""

import re
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from docs.pictures import FOLDER, PICTURES, main
from tests.refusals import refuses

DOCS = Path(__file__).parent.parent.parent / "docs"
BY_OTHERS = {"objectives.png"}  # examples/spread.py
IMAGE = re.compile(r"!\[(?P<text>[^\]]*)\]\(images/(?P<name>[^)]+)\)")


def test_each_picture_stands_in_the_documentation_with_a_text():
    shown = [found for page in DOCS.glob("*.md") for found in IMAGE.finditer(page.read_text(encoding="utf-8"))]
    made = set(PICTURES) | BY_OTHERS
    assert made <= {found["name"] for found in shown}
    assert made <= {file.name for file in FOLDER.iterdir()}
    assert all(len(found["text"]) > 20 for found in shown)


def test_pictures_are_small_files():
    sizes = [file.stat().st_size for file in FOLDER.iterdir()]
    assert max(sizes) < 300_000 and sum(sizes) < 1_500_000


def test_unknown_pictures_are_refused():
    refuses(SystemExit, "NAME is a.png, expected one of attention-heads.png, attention.svg", main, ["a.png"])

"""bench.growth: points beside their straight line, and the page that is made of them; bench.latency's counts."""

import json
from types import SimpleNamespace

import pytest

from bench import growth, latency


@pytest.fixture
def rows(monkeypatch):
    """The rows of two axes whose points take 1, 3, 9, ... seconds."""

    def run(command, **options):
        axis, _, value = command[-3:]
        place = list(growth.AXES[axis].quick).index(int(value))
        return SimpleNamespace(stdout=json.dumps({"seconds": 3.0**place, "mb": 10.0 * place}))

    monkeypatch.setattr(growth, "subprocess", SimpleNamespace(run=run, PIPE=None))  # matplotlib has calls of its own
    return [row for axis in ("batch", "threads") for row in growth.measured(axis, quick=True, cores=2)]


def test_lines_are_straight(rows):
    found = [(row["axis"], row["value"], row["line"], row["of_line"]) for row in rows]
    assert found == [
        ("batch", 1, 1, 1), ("batch", 2, 2, 1.5), ("batch", 4, 4, 2.25), ("threads", 1, 1, 1), ("threads", 2, 0.5, 6),
    ]  # fmt: skip


def test_page_and_picture(rows, tmp_path):
    about = {"date": "2026-11-28T00:00:00", "cpu": "a CPU", "threads": 2}
    page = growth.written(rows, about)
    assert "| MiniLM, texts of 128 tokens | 4 | 9 | 2.25 | 20 |" in page and "a CPU, 2 threads, 2026-11-28" in page
    growth.draw(rows, tmp_path / "growth.svg")
    assert (tmp_path / "growth.svg").stat().st_size > 1000


def test_calls_are_counted():
    assert latency.count_calls(lambda: len("")) == 3  # the function, len, and setprofile that ends it

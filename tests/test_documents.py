"""The README and the site's pages: their Python blocks run and print the `text` blocks after them; links lead on."""

import contextlib
import io
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from bertcore.cli import main

REPOSITORY = Path(__file__).parent.parent
PAGES = sorted((REPOSITORY / "docs").rglob("*.md"))
OTHERS = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md")]
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```$)?", flags=re.MULTILINE | re.DOTALL
)
# A command line in a code span or an indented block, without shell syntax.
COMMAND = re.compile(r"(?:`|^    |\| )bertcore (?P<name>[a-z][a-z-]*)(?P<rest>[^`\n|<>]*)", flags=re.MULTILINE)
# Libraries that a page needs; without them its blocks are not run.
HOSTS = {"clusters.md": ("pandas", "polars", "duckdb", "pyarrow", "ray", "pyspark")}
HOSTS["plugins.md"] = ("sklearn", "sentence_transformers", "chromadb", "haystack", "langchain_core", "spacy")
WITH_BLOCKS = [page for page in (REPOSITORY / "README.md", *PAGES) if BLOCK.search(page.read_text(encoding="utf-8"))]

sys.path.insert(0, str(REPOSITORY / "docs"))
import inclusions  # noqa: E402

pytest_plugins = ["tests.demo"]


@pytest.fixture
def demo_in_place(demo_folder, tmp_path, monkeypatch):
    """Work in a fresh folder; skip the test without the demonstration model."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("demo_in_place")
@pytest.mark.filterwarnings("ignore:.*newly initialised")
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_code_blocks_run_and_print_their_output(page):
    """The blocks of a page run one after another, in one namespace."""
    for host in HOSTS.get(page.name, ()):
        pytest.importorskip(host)
        if host == "pyspark" and shutil.which("java") is None:
            pytest.skip("no Java, which Spark runs in")
    text, names = page.read_text(encoding="utf-8"), {"__name__": "__main__"}
    for found in BLOCK.finditer(text):
        line = text.count("\n", 0, found.start()) + 2
        code = compile("\n" * (line - 1) + found["code"], str(page), "exec")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        if found["output"] is not None:
            assert printed.getvalue() == found["output"], f"{page}:{line}"


def test_command_lines_are_valid(capsys):
    known, found = {}, set()
    for page in (*OTHERS, *PAGES):
        for name, rest in COMMAND.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
            if name not in known:
                assert main([name, "--help"]) == 0, f"{page}: bertcore {name}"
                known[name] = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
            options = set(re.findall(r"--[a-z-]+", rest))
            assert options <= known[name], f"{page}: bertcore {name}{rest}"
            found |= options
    assert {"compare", "serve", "warmup"} <= set(known)
    assert "--training" in found


@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_links_within_the_repository_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    anchors = {
        re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)", text, flags=re.MULTILINE)
    }
    for found in inclusions.LINK.finditer(text):
        target, _, anchor = found["target"].partition("#")
        if "://" not in found["target"]:
            assert (page.parent / target).exists(), found[0]
            assert target or anchor in anchors, found[0]


def test_every_block_of_python_is_found():
    for page in (REPOSITORY / "README.md", *PAGES):
        text = page.read_text(encoding="utf-8")
        assert text.count("```python") == len(BLOCK.findall(text)), page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(REPOSITORY).as_posix())
def test_inclusions_are_found(page):
    text = inclusions.included(page.read_text(encoding="utf-8"))
    assert "<!-- include" not in text
    assert text.startswith("# ")


def test_unknown_inclusions_and_links():
    with pytest.raises(ValueError, match=r"README\.md has no section 'Nowhere'"):
        inclusions.included("<!-- include: readme: Nowhere -->")
    with pytest.raises(ValueError, match=r"nothing.*expected one of readme"):
        inclusions.included("<!-- include: nothing: x -->")
    with pytest.raises(ValueError, match="#nowhere"):
        inclusions.with_links_of_site("[a link](#nowhere)")
    assert inclusions.with_links_of_site("[a](#models), [b](bench/x.csv), [c](https://c), [d](docs/x.md#y)") == (
        "[a](models.md), `bench/x.csv`, [c](https://c), [d](x.md#y)"
    )


def test_references_name_what_modules_offer():
    from bertcore import kernels
    from bertcore.tasks.pipelines import TASKS

    last = {line.rpartition(".")[2] for line in inclusions.reference("bertcore.kernels").split("\n\n")}
    assert last == set(kernels.__all__)
    assert "::: bertcore.models.auto.AutoModel\n" in inclusions.reference("bertcore")
    assert "kernels" not in inclusions.reference("bertcore")
    assert inclusions.reference("bertcore.tasks.pipelines").count("Pipeline") == len(TASKS)


def test_the_page_of_commands_has_them_all():
    from bertcore.cli import COMMANDS

    found = re.findall(r"^## bertcore (\S+)$", inclusions.included("<!-- include: commands -->"), flags=re.MULTILINE)
    assert found == list(COMMANDS)


def test_tables_have_a_row_for_each_family_preset_and_operation():
    from bertcore.models.registry import known_families
    from bertcore.presets import PRESETS

    operations = {file.parent.name for file in (REPOSITORY / "kernels").glob("[a-z]*/reference.py")}
    tables = {"families": known_families(), "presets": PRESETS, "operations": operations}
    assert {*tables, "needs", "guide", "quality", "glue"} == set(inclusions.TABLES)
    for name, members in tables.items():
        rows = inclusions.TABLES[name]().splitlines()[2:]
        assert {re.match(r"\| `([^`]+)`", row)[1] for row in rows} == set(members)
        assert len(rows) == len(members)
        assert len({row.count(" | ") for row in rows}) == 1


def test_the_guide_shows_what_compare_prints(capsys):
    """Each table of the page, against the rows of `bertcore compare`."""
    from bertcore.cli.compare import COLUMNS

    assert main(["compare", "--json"]) == 0
    compared = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    page = inclusions.included((REPOSITORY / "docs" / "choosing.md").read_text(encoding="utf-8"))
    needs, guide, *quoted = (
        [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
        for table in re.findall(r"(?:^\|.*\n)+", page, flags=re.MULTILINE)
    )
    columns = {column.title: (key, column) for key, column in COLUMNS.items()}
    head, _, *rows = guide
    assert {row[0].strip("`") for row in rows} == set(compared)
    for row in rows:
        for title, cell in zip(head, row, strict=True):
            key, column = columns[title]
            assert cell.strip("`") == column.text(compared[row[0].strip("`")][key])
    for (head, _, *rows), key in zip(quoted, ("mnli_m", "glue_dev"), strict=True):
        assert head == ["model", COLUMNS[key].title, "source"]
        known = {name: [f"{each[key]:.1f}", each[f"{key}_source"]] for name, each in compared.items() if each[key]}
        assert {row[0].strip("`"): row[1:] for row in rows} == known
    picked = {need: re.findall(r"`(.+?)`", names) for need, _, names in needs[2:]}
    assert all(set(names) <= set(compared) and names for names in picked.values())
    best = max(compared.values(), key=lambda each: each["mnli_m"] or 0)
    assert picked["accuracy"][0] == best["name"]
    assert set(picked["languages"]) == {
        each["name"] for each in compared.values() if each["category"] == "multilingual"
    }

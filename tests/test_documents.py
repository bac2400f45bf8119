"""The README and the site's pages: their Python blocks run and print the `text` blocks after them; links lead on."""

import contextlib
import io
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import types
from collections import Counter
from pathlib import Path

import pytest

import bertcore
from bertcore.cli import main

REPOSITORY = Path(__file__).parent.parent
PAGES = sorted((REPOSITORY / "docs").rglob("*.md"))
OTHERS = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "bench/README.md")]
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```$)?", flags=re.MULTILINE | re.DOTALL
)
# A command line in a code span or an indented block, without shell syntax.
COMMAND = re.compile(r"(?:`|^    |\| )bertcore (?P<name>[a-z][a-z-]*)(?P<rest>[^`\n|<>]*)", flags=re.MULTILINE)
SHELL = re.compile(r"^```sh\n(?P<code>.*?)^```$", flags=re.MULTILINE | re.DOTALL)
# Libraries that a page needs; without them its blocks are not run.
HOSTS = {"clusters.md": ("pandas", "polars", "duckdb", "pyarrow", "ray", "pyspark")}
HOSTS["index.md"], HOSTS["formats.md"] = ("sklearn",), ("onnx", "onnxruntime")
HOSTS["plugins.md"] = ("sklearn", "sentence_transformers", "transformers", "chromadb", "haystack", "langchain_core")
HOSTS["plugins.md"] += ("llama_index.core", "spacy", "hnswlib")
WITH_BLOCKS = [page for page in (REPOSITORY / "README.md", *PAGES) if BLOCK.search(page.read_text(encoding="utf-8"))]

sys.path.insert(0, str(REPOSITORY / "docs"))
import gallery  # noqa: E402
import inclusions  # noqa: E402

from tests.refusals import refuses  # noqa: E402

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
        text = BLOCK.sub("", page.read_text(encoding="utf-8"))
        text = SHELL.sub(lambda found: textwrap.indent(found["code"], "    "), text)
        for name, rest in COMMAND.findall(text):
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
    assert re.search(r"^# ", text, flags=re.MULTILINE)


def test_unknown_inclusions_and_links():
    with pytest.raises(ValueError, match=r"README\.md has no section 'Nowhere'"):
        inclusions.included("<!-- include: readme: Nowhere -->")
    refuses(ValueError, r"nothing.*expected one of readme", inclusions.included, "<!-- include: nothing: x -->")
    refuses(ValueError, "#nowhere", inclusions.with_links_of_site, "[a link](#nowhere)")
    assert inclusions.with_links_of_site("[a](#models), [b](bench/x.csv), [c](https://c), [d](docs/x.md#y)") == (
        "[a](models.md), `bench/x.csv`, [c](https://c), [d](x.md#y)"
    )


def test_references_name_what_modules_offer():
    """Each public name has a place on a page, once; kernels have theirs alone."""
    from bertcore import kernels, lora
    from bertcore.tasks.pipelines import TASKS
    from bertcore.training import data, objectives

    pages = {page.stem: page.read_text(encoding="utf-8") for page in (REPOSITORY / "docs" / "api").glob("*.md")}
    addresses = {
        name: re.findall(r"^::: (\S+)$", inclusions.included(page), flags=re.MULTILINE) for name, page in pages.items()
    }
    counts = Counter(itertools.chain.from_iterable(addresses.values()))
    assert [address for address, count in counts.items() if count > 1] == []
    shown = {name: [address.rpartition(".")[2] for address in each] for name, each in addresses.items()}
    for module, name in ((kernels, "kernels"), (lora, "lora"), (objectives, "objectives"), (data, "data")):
        names = [each for each in module.__all__ if hasattr(getattr(module, each), "__qualname__")]
        assert set(names) <= set(shown[name]), name
    of_bertcore = [name for name in bertcore.__all__ if not hasattr(kernels, name) and name != "kernels"]
    modules = [name for name in of_bertcore if isinstance(getattr(bertcore, name), types.ModuleType)]
    assert set(of_bertcore) - set(modules) <= set().union(*shown.values())
    assert shown["tasks"].count("Pipeline") == 0
    assert sum(name.endswith("Pipeline") for name in shown["tasks"]) == len(TASKS) + 1  # StaticModelPipeline


def test_reference_begins_with_what_users_call():
    """A member has one place on a page; internals have none."""
    shown = {}
    first, *others = inclusions.reference("bertcore", ["AutoModel", "AutoModelFor*", "SentenceEncoder"], shown).split(
        "\n\n:::"
    )
    members = re.search(r"members: \[(.*?)\]", first)[1].split(", ")
    assert members[:3] == ["from_pretrained", "from_config", "__call__"]
    assert "save_pretrained" in members
    assert not set(members) & {"version", "in_use", "token_weights", "expected_tensors", "class_for_config"}
    masked = next(each for each in others if "AutoModelForMaskedLM" in each)
    assert "members: false" in masked
    assert "As in [`AutoModel`][bertcore.models.auto.AutoModel]: [`from_pretrained`][" in masked
    encoder = re.search(r"members: \[(.*?)\]", others[-1])[1].split(", ")
    assert encoder[0] == "encode"
    refuses(ValueError, "Nothing is not a public name of bertcore", inclusions.reference, "bertcore", ["Nothing"], {})


def test_page_of_commands_has_all_options():
    from bertcore.cli import COMMANDS, program

    sections = re.split(r"^## bertcore (\S+)$", inclusions.included("<!-- include: commands -->"), flags=re.MULTILINE)
    assert sections[1::2] == list(COMMANDS)
    for name, text in zip(sections[1::2], sections[2::2], strict=True):
        first_cells = "".join(re.findall(r"^ *\| (`.*?) \| ", text, flags=re.MULTILINE))
        for param in program.load(name).params:
            if not getattr(param, "hidden", False) and param.name not in ("backend", "traceback"):
                spelled = param.opts[0] if param.opts[0].startswith("-") else param.name.upper()
                assert re.search(rf"`{spelled}[` .]", first_cells), (name, spelled)
        rows = re.findall(r"^ *\|.*\|$", text, flags=re.MULTILINE)
        assert all(len(re.findall(r"(?<!\\)\|", row)) in (3, 4) for row in rows), name


def test_help_texts_become_markdown():
    import commands

    assert commands.prose("a *b* with --json") == r"a \*b\* with `--json`"
    assert commands.prose("  one    the first\n  two    the second").count("\n") == 3


def test_page_of_plugins_has_a_few_lines_for_each():
    text = (REPOSITORY / "docs" / "plugins.md").read_text(encoding="utf-8")
    modules = {file.stem for file in (REPOSITORY / "bertcore" / "plugins").glob("*.py")} - {"__init__", "corpus"}
    assert set(re.findall(r"^ *(?:from|import) bertcore\.plugins\.(\w+)", text, flags=re.MULTILINE)) == modules
    for found in BLOCK.finditer(text):
        assert len([line for line in found["code"].splitlines() if line and "import" not in line]) <= 4, found["code"]


def test_gallery_has_every_example():
    text = inclusions.included("<!-- include: gallery -->")
    scripts = {file.stem for file in (REPOSITORY / "examples").glob("*.py")} - gallery.TOOLS
    assert set(re.findall(r"^python examples/(\w+)\.py", text, flags=re.MULTILINE)) == scripts
    assert text.count("**Result:** ") == len(scripts) and "](#" not in text


@pytest.mark.slow
@pytest.mark.parametrize("script", gallery.examples(), ids=lambda script: script.stem)
def test_examples_start(script):
    """Each explains its options; what it does with real text takes minutes."""
    if script.stem == "shards":
        pytest.importorskip("ray")
    command, environment = [sys.executable, script, "--help"], os.environ | {"PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("usage")


@pytest.mark.slow
def test_short_example_runs(tmp_path):
    """The one that needs no network: its text is the standard library."""
    command = [sys.executable, REPOSITORY / "examples" / "code_search.py", "--seconds", "3", "--mlm-seconds", "0"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert "TF-IDF" in ended.stdout


PYTHON = '<div class="language-python highlight"><pre><code>{}</code></pre></div>'


@pytest.mark.parametrize("page, error", [
    ("<p>Either:\n- one\n- two</p>", "a list without an empty line"),
    ("<p>Either:\n1. one\n   and more\n2. two</p>", "a list without an empty line"),
    ("<h1>Tasks</h1><h1 id='london'>London</h1>", "2 headings of the first level"),
    ("<p>4 - 2 is 2\nand 1.5 is more than 1</p><ul><li>one</li></ul>", None),
    (PYTHON.format('"a"  <span>the</span> angle grows here'), "prose in a block of code"),
    (PYTHON.format("for each in names:  # of the file here\n    f(each)"), None),
    (PYTHON.replace("python", "text").format("the output of a program"), None),
])  # fmt: skip
def test_rendered_pages_are_checked(page, error):
    import checks

    found = checks.problem(page)
    assert found is None if error is None else error in found


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
    from bertcore.cli.info import COLUMNS

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

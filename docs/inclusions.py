"""Inclusions of the site's pages: sections of the README, files, and tables generated from the code.

A line `<!-- include: WHAT -->` of a page becomes one of these:

    readme                   the README's beginning
    readme: Training         its section of that name, without the heading
    prose: Models            the same without tables
    file: Containerfile      a Containerfile of the repository, as a block of code
    table: families          a function of `TABLES`
    commands                 the help of each command of the command line, as sections and tables
    gallery                  a card for each script in examples/
    reference: bertcore Auto*  the public names of a module that match patterns, whose docstrings mkdocstrings inserts
"""

import ast
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from commands import commands
from gallery import gallery
from reference import reference

REPOSITORY = Path(__file__).parent.parent
INCLUDE = re.compile(r"^<!-- include: (?P<kind>\w+)(?:: (?P<name>.+?))? -->$", re.MULTILINE)
LINK = re.compile(r"\[(?P<text>[^\]\n]+)\]\((?P<target>[^)\s]+)\)")
# The page that holds each section of the README.
PAGES = {
    "limits": "limits.md",
    "models": "models.md",
    "one-kernel-in-your-own-project": "kernels.md",
}

# Columns of `bertcore compare` on the page "Which model for what"; every model has a value in the last.
GUIDE = ("name", "use", "languages", "position_encoding", "positions", "parameters", "megabytes_int8")
GUIDE += ("flops_per_token", "mnli_m", "category")


def included(page: str) -> str:
    """Return the text of a page with its inclusions.

    Raises:
        ValueError: for an unknown inclusion or link.
    """
    shown: dict[Any, str] = {}
    return INCLUDE.sub(lambda found: _included(found["kind"], found["name"], shown), page)


def _included(kind: str, name: str | None, shown: dict[Any, str]) -> str:
    kinds: Mapping[str, Callable[[], str]] = {
        "readme": lambda: with_links_of_site(readme_section(name)),
        "prose": lambda: re.sub(r"^\|.*\n+", "", with_links_of_site(readme_section(name)), flags=re.MULTILINE),
        "file": lambda: f"```docker\n{(REPOSITORY / str(name)).read_text(encoding='utf-8').rstrip()}\n```",
        "commands": commands,
        "gallery": gallery,
        "reference": lambda: reference(str(name).split()[0], str(name).split()[1:], shown),
        "table": lambda: TABLES[str(name)](),
    }
    if kind not in kinds:
        raise ValueError(f"<!-- include: {kind} -->: expected one of {', '.join(kinds)}")
    return kinds[kind]()


def readme_section(name: str | None) -> str:
    """Return the text of a section of the README; None is the text before the first."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    beginning, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    if name is None:
        return beginning.partition("\n")[2].strip()  # without the title
    bodies = {title.strip(): body.strip() for title, _, body in (section.partition("\n") for section in sections)}
    if name not in bodies:
        raise ValueError(f"README.md has no section {name!r}; it has {', '.join(bodies)}")
    return bodies[name]


def with_links_of_site(text: str) -> str:
    """Return `text` with links to sections and pages of the site; a link to any other file becomes its name."""

    def link(found: re.Match[str]) -> str:
        target = found["target"]
        if target.startswith("#"):
            if target[1:] not in PAGES:
                raise ValueError(f"README.md links to {target}, which no page is known to have (docs/inclusions.py)")
            return f"[{found['text']}]({PAGES[target[1:]]})"
        if target.startswith("docs/"):
            return f"[{found['text']}]({target.removeprefix('docs/')})"
        return found[0] if "://" in target else f"`{target}`"

    return LINK.sub(link, text)


def families_table() -> str:
    """Return the table of families: model_types, the name of their classes, heads."""
    from bertcore.models.registry import family_of, known_families
    from bertcore.models.with_heads import head_specs

    rows = []
    for name in known_families():
        family = family_of({"model_type": name})
        heads = ", ".join(head.replace("_", " ").replace(" lm", " LM") for head in head_specs({"model_type": name}))
        names = ", ".join(f"`{known}`" for known in (family.model_type, *family.aliases))
        rows.append((names, f"{family.architecture}...", heads))
    return _table(("model_type", "classes in transformers", "heads, beside the base model"), rows)


def presets_table() -> str:
    """Return the table of published configs, with figures computed from each."""
    from bertcore.models.cost import figures
    from bertcore.presets import PRESETS

    rows = []
    for preset in PRESETS.values():
        found = figures(preset.config)
        width = f"{found.layers} x {found.hidden_size:,}"
        flops = f"{found.flops_per_token / 1e6:,.1f}"
        rows.append((f"`{preset.name}`", width, f"{found.parameters:,}", flops, preset.objective, preset.own))
    head = ("name", "layers x width", "parameters", "million FLOPs a token", "pretrained with", "its own")
    return _table(head, rows)


@functools.cache
def compared() -> list[dict[str, Any]]:
    """Return what `bertcore compare` prints of each preset, by category and number of parameters."""
    from bertcore.cli.info import LENGTH, described, row
    from bertcore.presets import PRESETS
    from bertcore.presets.preset import CATEGORIES

    rows = [row(name, *described(name), length=LENGTH) for name in PRESETS]
    return sorted(rows, key=lambda each: (CATEGORIES.index(each["category"]), each["parameters"]))


def comparison_table(names: Sequence[str]) -> str:
    """Return columns of `bertcore compare`, for models that have a value in the last."""
    from bertcore.cli.info import COLUMNS

    def cell(key: str, each: Mapping[str, Any]) -> str:
        text = COLUMNS[key].text(each[key]) if key in COLUMNS else str(each[key])
        return f"`{text}`" if key == "name" else text

    head = tuple(COLUMNS[key].title if key in COLUMNS else "source" for key in names)
    return _table(head, [tuple(cell(key, each) for key in names) for each in compared() if each[names[-1]] is not None])


def needs_table() -> str:
    """Return the table of needs: a rule for each, and the models that `bertcore compare`'s figures pick by it."""
    rows = compared()
    bert = next(each for each in rows if each["name"] == "bert-base-uncased")
    quoted = [each for each in rows if each["mnli_m"] is not None]
    best = sorted(quoted, key=lambda each: -each["mnli_m"])
    as_bert = [each for each in best if each["flops_per_token"] <= 1.1 * bert["flops_per_token"]]
    good = [each for each in quoted if each["mnli_m"] >= 83]
    few_flops = sorted(good, key=lambda each: each["flops_per_token"])
    small = sorted(good, key=lambda each: each["megabytes_int8"])
    long = [each for each in rows if each["category"] in ("general", "small") and (each["positions"] or 0) > 2048]

    def of(category: str) -> list[dict[str, Any]]:
        return [each for each in rows if each["category"] == category]

    picks = (
        ("accuracy", "the highest MNLI-m", best[:3]),
        ("accuracy at BERT-base's cost", "the highest MNLI-m of those within 1.1 of its FLOPs", as_bert[:3]),
        ("speed", "the fewest FLOPs a token of those with an MNLI-m of 83 or more", few_flops[:3]),
        ("memory", "the smallest in int8 of those with an MNLI-m of 83 or more", small[:3]),
        ("length", "English texts of more than 2,048 tokens", long),
        ("languages", "category multilingual", of("multilingual")),
        ("a domain", "category domain", of("domain")),
        ("entities, relations, answers", "category spans and entities", of("spans and entities")),
        ("search", "category embeddings", of("embeddings")),
    )
    return _table(
        ("what matters", "rule", "models"),
        [(need, rule, ", ".join(f"`{each['name']}`" for each in found)) for need, rule, found in picks],
    )


def operations_table() -> str:
    """Return the table of operations: the first line of each contract and the backends that implement it."""
    kernels = REPOSITORY / "kernels"
    rows = []
    for contract in sorted(kernels.glob("[a-z]*/reference.py")):
        folder = contract.parent
        summary = _first_line(folder / "__init__.py")
        backends = {"numpy": "reference", "numba": "cpu", "cupy": "cuda"}  # a module or a folder
        found = (name for name, module in backends.items() if list(folder.glob(f"{module}*")))
        rows.append((f"`{folder.name}`", summary, ", ".join(found)))
    return _table(("operation", "summary", "backends"), rows)


def _first_line(file: Path) -> str:
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].rstrip(".")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


TABLES: Mapping[str, Callable[[], str]] = {
    "families": families_table,
    "operations": operations_table,
    "needs": needs_table,
    "guide": lambda: comparison_table(GUIDE),
    "quality": lambda: comparison_table(("name", "mnli_m", "mnli_m_source")),
    "glue": lambda: comparison_table(("name", "glue_dev", "glue_dev_source")),
    "presets": presets_table,
}

"""What pages take from elsewhere instead of repeating it: sections of the README, files, and tables made of the code.

A line `<!-- include: WHAT -->` of a page becomes one of these:

    readme                   the README's beginning
    readme: Training         its section of that name, without the heading
    prose: Models            the same without tables
    file: Containerfile      a file of the repository, as a block of code
    table: families          a function of `TABLES`
    commands                 what the commands of the command line say of themselves
    reference: bertcore      what a module offers, each with its docstring, which mkdocstrings puts there
"""

import ast
import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
INCLUDE = re.compile(r"^<!-- include: (?P<kind>\w+)(?:: (?P<name>.+?))? -->$", re.MULTILINE)
LINK = re.compile(r"\[(?P<text>[^\]\n]+)\]\((?P<target>[^)\s]+)\)")
# The page that has a section of the README.
PAGES = {
    "limits": "troubleshooting.md#limits",
    "models": "models.md",
    "one-kernel-in-your-own-project": "kernels.md",
    "training": "training.md",
}


def included(page: str) -> str:
    """The text of a page with everything that it takes from elsewhere.

    Raises:
        ValueError: which inclusion or link is unknown.
    """
    return INCLUDE.sub(lambda found: _included(found["kind"], found["name"]), page)


def _included(kind: str, name: str | None) -> str:
    kinds: Mapping[str, Callable[[], str]] = {
        "readme": lambda: with_links_of_site(readme_section(name)),
        "prose": lambda: re.sub(r"^\|.*\n+", "", with_links_of_site(readme_section(name)), flags=re.MULTILINE),
        "file": lambda: f"```\n{(REPOSITORY / str(name)).read_text(encoding='utf-8').rstrip()}\n```",
        "commands": commands,
        "reference": lambda: reference(str(name)),
        "table": lambda: TABLES[str(name)](),
    }
    if kind not in kinds:
        raise ValueError(f"<!-- include: {kind} -->: expected one of {', '.join(kinds)}")
    return kinds[kind]()


def readme_section(name: str | None) -> str:
    """The text of a section of the README; None for what stands before the first."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    beginning, *sections = re.split(r"^## ", text, flags=re.MULTILINE)
    if name is None:
        return beginning.partition("\n")[2].strip()  # without the title
    bodies = {title.strip(): body.strip() for title, _, body in (section.partition("\n") for section in sections)}
    if name not in bodies:
        raise ValueError(f"README.md has no section {name!r}; it has {', '.join(bodies)}")
    return bodies[name]


def with_links_of_site(text: str) -> str:
    """The README's links as the site has them: to the page of a section, to a page, or a file's name, which is none."""

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


def reference(module: str) -> str:
    """What mkdocstrings makes the reference of a module of: each of its public names, where it is made.

    Modules are left out, and in `bertcore` the names of the kernels, which have a page. Of "bertcore.tasks.pipelines"
    it is the class of each task.
    """
    package = importlib.import_module(module)
    if module == "bertcore.tasks.pipelines":
        offered = [package.pipeline_class(task) for task in package.TASKS]
    else:
        offered = [each for name in package.__all__ if hasattr(each := getattr(package, name), "__qualname__")]
    own = [each for each in offered if module != "bertcore" or not each.__module__.startswith("bertcore.kernels")]
    return "\n\n".join(f"::: {each.__module__}.{each.__qualname__}" for each in own)


def families_table() -> str:
    """A row for each family that is known: its model_types, what its classes are called, its heads."""
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
    """A row for each published config that is known by name, with what is computed from it."""
    from bertcore.models.figures import figures
    from bertcore.presets import PRESETS

    rows = []
    for preset in PRESETS.values():
        found = figures(preset.config)
        width = f"{found.layers} x {found.hidden_size:,}"
        flops = f"{found.flops_per_token / 1e6:,.1f}"
        rows.append((f"`{preset.name}`", width, f"{found.parameters:,}", flops, preset.objective, preset.own))
    head = ("name", "layers x width", "parameters", "million FLOPs a token", "pretrained with", "its own")
    return _table(head, rows)


def operations_table() -> str:
    """A row for each operation of bertcore.kernels: the first line of its contract, the backends that have it."""
    kernels = REPOSITORY / "kernels"
    rows = []
    for contract in sorted(kernels.glob("[a-z]*/reference.py")):
        folder = contract.parent
        summary = _first_line(folder / "__init__.py")
        backends = {"numpy": contract, "numba": folder / "cpu.py", "cupy": folder / "cuda.py"}
        rows.append((f"`{folder.name}`", summary, ", ".join(name for name, file in backends.items() if file.is_file())))
    return _table(("operation", "what it is", "backends"), rows)


def commands() -> str:
    """A section for each command of the command line: what it does, and examples."""
    from bertcore.cli import COMMANDS

    sections = []
    for name, module in COMMANDS.items():
        examples = re.sub(r"^  ", "", module.EXAMPLES.removeprefix("examples:\n"), flags=re.MULTILINE)
        sections.append(f"## bertcore {name}\n\n{module.__doc__}\n\n```text\n{examples}\n```")
    return "\n\n".join(sections)


def _first_line(file: Path) -> str:
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return docstring.partition("\n")[0].rstrip(".")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


TABLES: Mapping[str, Callable[[], str]] = {
    "families": families_table,
    "operations": operations_table,
    "presets": presets_table,
}

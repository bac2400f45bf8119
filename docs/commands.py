"""The page of commands: for each a description, examples and tables of its options, read from click."""

import re
from collections.abc import Iterator

import click

from bertcore.cli import COMMANDS, program
from bertcore.cli.options import Command

OPTION = re.compile(r"(?<![\w`-])(--?[a-z][\w-]*|[A-Z]{2,}(?:_[A-Z]+)*\.\.\.|BERTCORE_[A-Z_]+)(?![\w`])")
DEFAULT = re.compile(r"\s*\(default: (?P<value>.+)\)$")
ROW = re.compile(r"^  (?P<term>\S.*?)  +(?P<meaning>.+)$")
SETTINGS = "Settings of the run"  # the long table, which is folded


def commands() -> str:
    """Return a section for each command, after one for the options of all."""
    params = program.load("demo").params
    everywhere = {param.name for param in params if _group(param) == Command.title}
    parts = [f"## {Command.title}\n\n{_table([param for param in params if param.name in everywhere])}"]
    for name in COMMANDS:
        command = program.load(name)
        parts.append(f"## bertcore {name}\n\n{prose(command.help or '')}\n\n```sh\n{command.epilog}\n```")
        params = [
            each for each in command.params if _group(each) != Command.title and not getattr(each, "hidden", False)
        ]
        settings = [each for each in params if _group(each).startswith(SETTINGS)]
        parts.append(_table(sorted((each for each in params if each not in settings), key=_place)))
        if settings:
            table = _table(settings).replace("\n", "\n    ")
            parts.append(f'??? abstract "{SETTINGS}, as in TrainingArguments ({len(settings)})"\n\n    {table}')
    return "\n\n".join(parts)


def prose(text: str) -> str:
    """Return a help text as Markdown: options as code, and lines of two columns as a table."""
    return "\n\n".join(_block(block) for block in re.split(r"\n\s*\n", text))


def _block(block: str) -> str:
    rows = [ROW.match(line) for line in block.splitlines()]
    if len(rows) > 1 and all(rows):
        cells = (f"| `{row['term']}` | {_inline(row['meaning'])} |" for row in rows if row)
        return "\n".join(("| name | meaning |", "| --- | --- |", *cells))
    return "\n".join(_inline(line.strip()) for line in block.splitlines())


def _inline(text: str) -> str:
    """Return text whose options are code, and in which no character has a meaning in Markdown by chance."""
    parts = text.split("`")
    for place in range(0, len(parts), 2):  # beside code
        escaped = re.sub(r"([*_<>|\[\]])", r"\\\1", parts[place])
        parts[place] = OPTION.sub(lambda found: f"`{found[1].replace(chr(92), '')}`", escaped)
    return "`".join(parts)


def _group(param: click.Parameter) -> str:
    return getattr(param, "group", "")


def _place(param: click.Parameter) -> tuple[bool, bool]:
    """Return the order of a parameter: positions, the command's own options, those it shares."""
    return isinstance(param, click.Option), _group(param) not in ("", "Options")


def _table(params: list[click.Parameter]) -> str:
    rows = (" | ".join(_row(param)) for param in params)
    return "\n".join(("| option | meaning | default |", "| --- | --- | --- |", *(f"| {row} |" for row in rows)))


def _row(param: click.Parameter) -> Iterator[str]:
    """Yield the cells of a parameter: its names, meaning and default."""
    context = click.Context(click.Command("bertcore"))
    is_choice = isinstance(param.type, click.Choice)
    if isinstance(param, click.Option):
        value = "" if param.is_flag or is_choice else f" {param.make_metavar(context)}"
        names = [*param.opts, *param.secondary_opts]
        yield ", ".join(f"`{name}{value if name == names[-1] else ''}`" for name in names)
    else:
        yield f"`{re.sub(r'[][]', '', param.make_metavar(context))}`"
    text = getattr(param, "help", None) or ""
    default = DEFAULT.search(text)
    meaning = _inline(DEFAULT.sub("", text))
    if is_choice:
        meaning += f"; one of {', '.join(f'`{each}`' for each in param.type.choices)}"
    yield meaning
    if param.required:
        yield "required"
    else:
        value = default["value"] if default else ""
        yield f"`{value}`" if value and " " not in value else _inline(value)

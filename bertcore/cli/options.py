"""Turn a dataclass and its types into a command with options.

A command is a dataclass derived from `Command`: a field is an option (or a position, if `positions` names it), its type
says how its text is read, and `opt` gives its text in the help and its default. The class's docstring describes the
command, with the section "Examples". `settings_options` makes options of another dataclass's fields, such as those of
TrainingArguments, whose docstring has their texts in the section "Attributes".
"""

import contextlib
import dataclasses
import errno
import importlib
import inspect
import math
import os
import re
import textwrap
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import click

# The errors of a write: a full disk or quota, a file that is too large for its system, a disk that fails.
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
BACKENDS = ("auto", "numpy", "numba", "cupy")  # as bertcore.kernels.dispatch has them, which imports NumPy


class CommandError(RuntimeError):
    """A command cannot do what it was asked to do; the message is for the user."""


class Kind(click.ParamType):
    """The type of an option's value: `read` returns the value of a text, or ValueError; `expected` is for errors."""

    def __init__(self, read: Callable[[str], Any], expected: str, metavar: str = "N"):
        self.read, self.expected, self.name = read, expected, metavar

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.read(value) if isinstance(value, str) else value
        except ValueError:
            self.fail(f"is {value!r:.100}, expected {self.expected}", param, ctx)


class Choice(click.Choice):
    """A value from a list of names."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value not in self.choices:
            self.fail(f"is {value!r:.100}, expected one of {', '.join(self.choices)}", param, ctx)
        return value


def between(kind: Callable[[str], Any], low: float, high: float, *, above: bool = False) -> Callable[[str], Any]:
    """Return a function that reads a number from `low` on, or (above) beyond it, to below `high`."""

    def read(text: str) -> Any:
        value = kind(text)
        if not low <= value < high or (above and value == low):
            raise ValueError(text)
        return value

    return read


POSITIVE = Kind(between(int, 1, math.inf), "an integer from 1 up")
NUMBER = Kind(between(float, 0, math.inf), "a number from 0 up", "X")
ABOVE_0 = Kind(between(float, 0, math.inf, above=True), "a number above 0", "X")
SHARE = Kind(between(float, 0, 1), "a number from 0 to below 1", "SHARE")
KINDS = {int: Kind(int, "an integer"), float: Kind(float, "a number", "X"), str: click.STRING}
OLD = "old_"  # before the name of a position that is given by an option
SEVERAL = "several words may follow the option"
REQUIRED: Any = dataclasses.MISSING  # the default of an option that has none
INPUTS = ("file", "inputs", "data", "eval", "corpus", "queries", "qrels")  # options that name files to read


def _literal(text: str) -> str:
    if text == "-":
        raise ValueError(text)
    return text


LiteralText = Annotated[str, Kind(_literal, "a text: only files are read from standard input", "TEXT")]
Positive = Annotated[int, POSITIVE]
Number = Annotated[float, NUMBER]
Above0 = Annotated[float, ABOVE_0]
Share = Annotated[float, SHARE]
Seed = Annotated[int, Kind(between(int, 0, 2**32), "an integer from 0 to 2**32 - 1")]
File = Annotated[str, click.Path()]
Words = Annotated[tuple[str, ...], SEVERAL]


def opt(text: str, default: Any = None) -> Any:
    """Return the field of an option, by its text in the help and its default, which is REQUIRED for one without."""
    return dataclasses.field(default=default, metadata={"text": text})


@typing.dataclass_transform(kw_only_default=True)
@dataclasses.dataclass(kw_only=True)
class Command:
    """A command of `bertcore`."""

    positions: ClassVar[tuple[str, ...]] = ()
    spellings: ClassVar[tuple[str, ...]] = ()  # other spellings: "--OPTION FIELD"
    title: ClassVar[str] = "Options of every command"  # heading in the help of derived commands
    apart: ClassVar[tuple[str, ...]] = ()  # "OPTION OTHERS": those that cannot be given with it
    needs: ClassVar[tuple[str, ...]] = ()  # "OPTION OTHERS": those that it needs one of
    only_for: ClassVar[tuple[str, ...]] = ()  # "OPTION OTHER VALUES": those of another option that it can be given with

    backend: Annotated[str | None, BACKENDS] = opt(
        "compute by this backend (default: the variable BERTCORE_BACKEND, else auto, which is numba)"
    )
    traceback: bool = opt("show where an error comes from (also BERTCORE_TRACEBACK=1)", False)

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(kw_only=True)(cls)

    def __post_init__(self) -> None:
        """Check the options; CommandError, ValueError or TypeError for a wrong one."""
        named = vars(self)
        written = named.get("output") or named.get("out") or ""
        values = {name: named.get(name) or () for name in INPUTS}
        files = [(name, read) for name, each in values.items() for read in ((each,) if isinstance(each, str) else each)]
        if len(twice := [self._shown(name) for name, read in files if read == "-"]) > 1:
            names = " and ".join(twice[:2])
            raise CommandError(f"{names} are both standard input, expected a file for one of them")
        for _, read in files:
            if os.path.isfile(written) and os.path.exists(read) and os.path.samefile(written, read):
                raise CommandError(f"the output is {written}, which is an input, too; expected another file")
        given = {each.name for each in dataclasses.fields(self) if named[each.name] != each.default}
        for name, *others in map(str.split, self._of_all("apart")):
            if name in given and (other := next((each for each in others if each in given), None)):
                raise CommandError(f"{self._shown(name)} and {self._shown(other)} are both given, expected one of them")
        for name, *others in map(str.split, self._of_all("needs")):
            if name in given and given.isdisjoint(others):
                raise CommandError(f"{self._shown(name)} is given without {' or '.join(map(self._shown, others))}")
        for name, other, *values in map(str.split, self._of_all("only_for")):
            if name in given and named[other] not in (None, *values):
                expected = f"{self._shown(other)} {', '.join(values)}"
                raise CommandError(f"{self._shown(name)} is for {expected}, not for {named[other]}")

    def refuse(self, names: str, why: str) -> None:
        """Check that none of these options is given."""
        usual = {each.name: each.default for each in dataclasses.fields(self)}
        if given := next((name for name in names.split() if getattr(self, name) != usual[name]), None):
            raise CommandError(f"{self._shown(given)} is given, {why}")

    def run(self) -> int | None:
        """Do what the command is for; the exit code, 0 for None."""
        raise NotImplementedError

    @classmethod
    def parameters(cls) -> list[click.Parameter]:
        fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
        hints = typing.get_type_hints(cls, include_extras=True)
        names = [*cls.positions, *(name for name in fields if name not in cls.positions)]
        names = [name for name in names if _type(hints[name])[0] is not None]
        made = [cls._parameter(fields[name], hints[name]) for name in names]
        old = [(option, name) for option, name in cls.all_spellings().items() if name in cls.positions]
        return made + [click.Option([option, OLD + name], hidden=True, type=click.Path()) for option, name in old]

    @classmethod
    def all_spellings(cls) -> dict[str, str]:
        """Return {spelling: field}."""
        return dict(map(str.split, cls._of_all("spellings")))

    @classmethod
    def _of_all(cls, rules: str) -> list[str]:
        """Return the rules of this class and the classes it derives from."""
        return [rule for each in cls.__mro__ for rule in vars(each).get(rules, ())]

    @classmethod
    def _shown(cls, name: str) -> str:
        return name.upper() if name in cls.positions else "--" + name.replace("_", "-")

    @classmethod
    def _parameter(cls, field: dataclasses.Field, hint: object) -> click.Parameter:
        owner = next(each for each in cls.__mro__ if field.name in inspect.get_annotations(each))
        others = [spelling for spelling, name in cls.all_spellings().items() if name == field.name]
        known = (each for each in cls.__mro__ if field.name in getattr(each, "__dataclass_fields__", ()))
        text = next(filter(None, (each.__dataclass_fields__[field.name].metadata.get("text") for each in known)))
        if field.name not in cls.positions:
            return option(field.name, hint, field.default, text, others, "Options" if owner is cls else owner.title)
        kind, _, is_tuple, _ = _type(hint)
        is_required = field.default is dataclasses.MISSING
        options: dict[str, Any] = {"required": is_required} | ({} if is_required else {"default": field.default})
        if isinstance(kind, Choice):
            options["metavar"] = field.name.upper()
        return click.Argument([field.name], type=kind, nargs=-1 if is_tuple else 1, help=text, **options)

    def chosen_backend(self) -> contextlib.AbstractContextManager[None]:
        """Return a block in which --backend is in force; BackendUnavailable if it cannot run here."""
        from bertcore.kernels import get_backend, resolve_backend, use_backend

        # Models get their inputs as lists in host memory: for these, auto is decided already.
        return use_backend(resolve_backend(self.backend or get_backend(), on_gpu=False))


def option(
    name: str, hint: Any, default: Any, text: str, others: Sequence[str] = (), group: str = "Options", shown: Any = None
) -> click.Option:
    """Return the option of a field of this type and default (dataclasses.MISSING: the option is required).

    `text`, `others` (spellings) and the heading `group` are for the help, as is `shown`, a default to print instead.
    """
    kind, is_optional, is_tuple, metadata = _type(hint)
    flag = "--" + name.replace("_", "-")
    shown = default if shown is None else shown
    if shown not in (dataclasses.MISSING, None, (), False) and "default" not in text:
        text += f" (default: {' '.join(map(str, shown)) if isinstance(shown, tuple) else shown})"
    options: dict[str, Any] = {"required": True} if default is dataclasses.MISSING else {"default": default}
    if kind is bool:
        flag, options = f"{flag}/--no-{flag[2:]}" if is_optional else flag, options | {"is_flag": True}
    else:
        options |= {"type": kind, "multiple": is_tuple}
    made = click.Option([*others, flag, name], help=text, **options)
    made.group, made.takes_words = group, SEVERAL in metadata  # type: ignore[attr-defined]
    return made


def settings_options(
    settings: type, names: Mapping[str, str], defaults: Mapping[str, Any], *, group: str, without: Sequence[str] = ()
) -> list[click.Parameter]:
    """Return options for the fields of a dataclass whose types are plain; those that are not given are None.

    `names` has other spellings, {option: field}; `defaults` are other ones, to be shown in the help under `group`.
    """
    hints, texts, made = typing.get_type_hints(settings), texts_of(settings), []
    for field in dataclasses.fields(settings):
        kind, _, is_tuple, _ = _type(hints[field.name])
        if kind is not None and not is_tuple and field.name not in without:
            others = [spelling for spelling, name in names.items() if name == field.name]
            shown, text = defaults.get(field.name, field.default), texts.get(field.name, "")
            made.append(option(field.name, hints[field.name] | None, None, text, others, group, shown))
    return made


def _type(hint: Any) -> tuple[Any, bool, bool, tuple[Any, ...]]:
    """Return how a type is read (None if it cannot be), if it may be None, if there are several, metadata."""
    metadata: tuple[Any, ...] = ()
    is_optional = is_tuple = False
    while True:
        origin, parts = typing.get_origin(hint), typing.get_args(hint)
        if origin is Annotated:
            hint, metadata = parts[0], (*metadata, *hint.__metadata__)
        elif origin in (typing.Union, types.UnionType) and len(parts) == 2 and types.NoneType in parts:
            hint, is_optional = next(part for part in parts if part is not types.NoneType), True
        elif origin is tuple:
            hint, is_tuple = parts[0], True
        else:
            break
    kinds = (Choice(each) if isinstance(each, tuple) else each for each in metadata)
    known = next((each for each in kinds if isinstance(each, click.ParamType)), None)
    return known or (bool if hint is bool else KINDS.get(hint)), is_optional, is_tuple, metadata


def texts_of(described: type) -> dict[str, str]:
    """Return {field: text} of the section "Attributes" of a class's docstring."""
    texts: dict[str, str] = {}
    for entry in re.split(r"\n(?=\S)", sections(described.__doc__ or "").get("Attributes", "")):
        names, _, text = entry.partition(":")
        texts |= {name.strip(): " ".join(text.split()).rstrip(".") for name in names.split(",") if text}
    return texts


def sections(docstring: str) -> dict[str, str]:
    """Return the description of a docstring, under "", and its sections by their titles."""
    parts = re.split(r"^(Examples|Attributes|Args|Raises):\n", inspect.cleandoc(docstring), flags=re.MULTILINE)
    bodies = (textwrap.dedent(body).strip("\n") for body in parts[2::2])
    return {"": parts[0].strip()} | dict(zip(parts[1::2], bodies, strict=True))


class OptionsCommand(click.Command):
    """The click command of a `Command`."""

    def __init__(self, name: str, made: type[Command]):
        self.made = made
        parts = sections(made.__doc__ or "")
        super().__init__(name, params=made.parameters(), help=parts[""], epilog=parts.get("Examples", ""))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words after the command's name; `--terms a b` is `--terms a --terms b`."""
        several = {option for param in self.params if getattr(param, "takes_words", False) for option in param.opts}
        return super().parse_args(ctx, list(_spread(args, several)))

    def invoke(self, ctx: click.Context) -> int | None:
        """Make the command of its options; errors in these are errors of usage."""
        names, params = {field.name for field in dataclasses.fields(self.made)}, ctx.params
        for old in [name for name in params if name.startswith(OLD)]:
            if (value := params.pop(old)) is not None:
                params[old.removeprefix(OLD)] = value
        known = {name: value for name, value in params.items() if name in names}
        rest = {name: value for name, value in params.items() if name not in names and value is not None}
        try:
            command = self.made(**known, **({"settings": rest} if "settings" in names else {}))
        except (ValueError, TypeError, CommandError) as error:
            raise click.UsageError(self._by_option(str(error)), ctx) from error
        ctx.obj = command
        return command.run()

    def _by_option(self, message: str) -> str:
        """Return an error's message with the option in place of the field that it names."""
        options = {param.name: param.opts[0] for param in self.params if isinstance(param, click.Option)}
        return re.sub(r"^\w+", lambda found: options.get(found[0], found[0]), message)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(f"\n{self.help}\n")

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Examples"):
            formatter.write(textwrap.indent(self.epilog or "", "  ") + "\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                groups.setdefault(getattr(param, "group", Command.title), []).append(record)
        groups[Command.title] = groups.pop(Command.title)  # last
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _spread(args: list[str], several: set[str]) -> Iterator[str]:
    option, is_first = None, False
    for word in args:
        if word in several:
            option, is_first = word, True
        elif (option is not None and not word.startswith("-")) or is_first:
            if not is_first:
                yield typing.cast(str, option)
            is_first = False
        else:
            option = None
        yield word


class Help(click.HelpFormatter):
    """A help page in colours, which click leaves out where the output is not a terminal."""

    def write_heading(self, heading: str) -> None:
        self.write(f"{'':>{self.current_indent}}{click.style(heading + ':', bold=True)}\n")

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 28, col_spacing: int = 2) -> None:
        super().write_dl([(click.style(first, fg="cyan"), second) for first, second in rows], col_max, col_spacing)


click.Context.formatter_class = Help


class Group(click.Group):
    """The commands of a program, {command: (module, class, one line of help)}, each imported when it is asked for."""

    def __init__(self, name: str, table: Mapping[str, tuple[str, str, str]], **options: Any):
        super().__init__(name, commands={each: click.Command(each) for each in table}, **options)
        self.table = table

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.load(cmd_name) if cmd_name in self.table else None

    def load(self, name: str) -> OptionsCommand:
        module, kind, _ = self.table[name]
        return OptionsCommand(name, getattr(importlib.import_module(module), kind))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in self.table.items()])

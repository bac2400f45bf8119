"""Files that sentence-transformers writes beside a model: its modules, their settings, its prompts."""

import ast
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from bertcore.checkpoint import CheckpointError
from bertcore.checkpoint.files import CONFIG_NAME, checkpoint_folder, read_complete, read_json_object, write_json

MODULES_NAME = "modules.json"
MODELS = "sentence_transformers.models"  # the modules' classes before version 6, which it still accepts
BGE_LINEARS = "colbert_linear.pt", "sparse_linear.pt"  # of BGE-M3: maps to token vectors and to their weights
SETTINGS_NAME = "config_sentence_transformers.json"
ROUTER_NAME = "router_config.json"
ROUTERS = "Router", "Asym"  # now, and before sentence-transformers 5

# The settings of the Transformer module; early versions of sentence-transformers named the file after the family.
TRANSFORMER_NAMES = [
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]


@dataclass(frozen=True)
class Module:
    """One entry of modules.json: its kind ("Pooling"), the full name of its class, its folder."""

    kind: str
    type: str
    folder: Path


@dataclass(frozen=True)
class Prompts:
    """Texts to put before an input, by name, and the name of the default one."""

    by_name: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    def __post_init__(self) -> None:
        is_mapping = isinstance(self.by_name, Mapping)
        if not is_mapping or not all(isinstance(text, str) for pair in self.by_name.items() for text in pair):
            raise TypeError(f"prompts is {self.by_name!r}, expected texts by name")

    def resolve(self, prompt: str | None, prompt_name: str | None) -> str:
        """Return the text that the arguments of a call select.

        Raises:
            TypeError: an argument is not a string or None.
            ValueError: the name is unknown, or both arguments are given.
        """
        for argument, value in (("prompt", prompt), ("prompt_name", prompt_name)):
            if value is not None and not isinstance(value, str):
                raise TypeError(f"{argument} is {value!r}, expected a string or None")
        if prompt is not None:
            if prompt_name is not None:
                raise ValueError(f"prompt and prompt_name ({prompt_name!r}) are both given, expected one of them")
            return prompt
        name = self.default if prompt_name is None else prompt_name
        if name is not None and name not in self.by_name:
            known = ", ".join(self.by_name) or "none"
            raise ValueError(f"prompt_name is {name!r}, this model has {known}")
        return "" if name is None else self.by_name[name]

    def first_of(self, *names: str) -> str | None:
        """Return the first of these names with a non-empty text; otherwise the first known name, or None."""
        known = [name for name in names if name in self.by_name]
        return next((name for name in known if self.by_name[name]), known[0] if known else None)


def with_prompt(options: dict[str, Any], prompt: str) -> dict[str, Any]:
    """Return the options of a call with this prompt added, unless they have one."""
    asked = options.get("prompt"), options.get("prompt_name")
    return {**options, "prompt": prompt} if asked == (None, None) else options


def opened_folder(path: str | os.PathLike[str], what: str) -> Path:
    """Return the folder at `path`. Raises CheckpointError for a file: settings are stored beside the weights."""
    if Path(path).is_file():
        raise CheckpointError(f"{path} is a file, expected the folder of a {what} or of an encoder without modules")
    return checkpoint_folder(path)


def read_modules(folder: Path) -> list[Module] | None:
    """Return the modules of a model, in their order; None for a plain model without modules.json.

    Raises CheckpointError for a modules.json that is invalid or points out of the folder.
    """
    file = folder / MODULES_NAME
    if not file.is_file():
        return None
    content = read_complete(file)
    try:
        modules = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is not valid JSON: {error}") from error
    if not isinstance(modules, list):
        raise CheckpointError(f"{file} holds a JSON {type(modules).__name__}, expected a list of modules")
    for index, module in enumerate(modules):
        if not isinstance(module, dict) or not all(isinstance(module.get(key), str) for key in ("type", "path")):
            raise CheckpointError(f"{file}[{index}] is {module!r:.60}, expected an object with the texts type and path")
    listed = [(module["type"], module["path"]) for module in modules]
    return [Module(kind.rpartition(".")[2], kind, inside(file, path)) for kind, path in listed]


def module_entries(kinds: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the content of a modules.json: the full names of the modules' classes by their folders."""
    pairs = enumerate(kinds.items())
    return [{"idx": index, "name": str(index), "path": path, "type": kind} for index, (path, kind) in pairs]


def inside(file: Path, path: str) -> Path:
    """Return the folder `path` beside `file`; downloaded data must not point elsewhere."""
    relative = PurePosixPath(path)
    if relative.is_absolute() or ".." in relative.parts or "\\" in path or ":" in path or len(path) > 255:
        raise CheckpointError(f"{file} names the path {path!r:.80}, expected a folder inside {file.parent}")
    return file.parent / relative


@dataclass(frozen=True)
class Routes:
    """The routes of texts through the modules of a folder: one called "", or those of its Router by task.

    Attributes:
        modules: the modules of each route by its name, including those before and after the Router.
        default: the route of texts without a task; None if there is no such route.
        mappings: routes by (task, modality), where None stands for any.
        file: the Router's config; None without one.
    """

    modules: Mapping[str, list[Module]]
    default: str | None = None
    mappings: Mapping[tuple[str | None, Any], str] = field(default_factory=dict)
    file: Path | None = None

    @property
    def first(self) -> str:
        """The default route, or without one the first."""
        return next(iter(self.modules)) if self.default is None else self.default

    def resolve(self, task: str | None) -> str:
        """Return the name of the route of texts with this task. Raises ValueError if there is none."""
        for key in ((task, "text"), (task, None), (None, "text"), (None, None)):
            if key in self.mappings:
                return self.mappings[key]
        for name in (task, "text"):
            if name in self.modules:
                return str(name)
        if task is None and self.default is not None:
            return self.default
        known = [*self.modules, *(task for task, _ in self.mappings if task)]
        raise ValueError(f"task is {task!r}, expected one of {', '.join(dict.fromkeys(known))}: the model's routes")


def read_routes(folder: Path) -> Routes | None:
    """Return the routes of a model; None for a plain model without modules.json.

    Raises CheckpointError for an invalid file.
    """
    modules = read_modules(folder)
    if modules is None:
        return None
    places = [place for place, module in enumerate(modules) if module.kind in ROUTERS]
    if not places:
        return Routes({"": modules}, "")
    if len(places) > 1:
        raise CheckpointError(f"{folder / MODULES_NAME} has {len(places)} Routers, expected one at most")
    place = places[0]
    file = modules[place].folder / ROUTER_NAME
    file = file if file.is_file() else file.parent / CONFIG_NAME
    config = read_json_object(file)
    types, structure, options = (config.get(key) for key in ("types", "structure", "parameters"))
    if not isinstance(types, dict) or not all(isinstance(kind, str) for kind in types.values()):
        raise CheckpointError(f"{file}: types is {types!r:.80}, expected an object of class names by module")
    if not isinstance(structure, dict) or not structure:
        raise CheckpointError(f"{file}: structure is {structure!r:.80}, expected lists of modules by route")
    if not isinstance(options, dict | None):
        raise CheckpointError(f"{file}: parameters is {options!r:.80}, expected an object")
    known = {name: Module(kind.rpartition(".")[2], kind, inside(file, name)) for name, kind in types.items()}
    routes = {}
    for route, names in structure.items():
        if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
            raise CheckpointError(f"{file}: the route {route!r} is {names!r:.80}, expected a list of modules")
        for name in names:
            if name not in known:
                raise CheckpointError(f"{file}: the route {route!r} has {name!r:.80}, which types does not have")
            if known[name].kind in ROUTERS:
                raise CheckpointError(f"{file}: the route {route!r} has {name!r:.80}, a Router within a Router")
        routes[route] = [*modules[:place], *(known[name] for name in names), *modules[place + 1 :]]
    options = options or {}
    default, mappings = options.get("default_route"), options.get("route_mappings") or {}
    if default is not None and (not isinstance(default, str) or default not in routes):
        raise CheckpointError(f"{file}: default_route is {default!r:.80}, expected one of {', '.join(routes)}, or null")
    if default is None and SavedSettings(file, options).flag("allow_empty_key", True):
        default = next(iter(routes))
    if not isinstance(mappings, dict):
        raise CheckpointError(f"{file}: route_mappings is {mappings!r:.80}, expected an object")
    return Routes(routes, default, dict(_mapping(file, *entry, routes) for entry in mappings.items()), file)


def _mapping(file: Path, key: str, route: object, routes: Mapping[str, Any]) -> tuple[tuple[str | None, Any], str]:
    """Return an entry of route_mappings, whose key is the text of (task, modality)."""
    try:
        task, modality = ast.literal_eval(key[:200])
        fits = isinstance(task, str | None) and isinstance(modality, str | tuple | None)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        fits = False
    if not fits:
        raise CheckpointError(f"{file}: route_mappings has the key {key!r:.80}, expected the text of (task, modality)")
    if not isinstance(route, str) or route not in routes:
        raise CheckpointError(f"{file}: route_mappings has {route!r:.80}, expected one of {', '.join(routes)}")
    return (task, modality), route


def check_kinds(folder: Path, modules: list[Module], supported: tuple[str, ...]) -> None:
    """Raise CheckpointError for the first module of an unsupported kind."""
    for module in modules:
        if module.kind not in supported:
            kinds = {"Pooling": "sentence", "SpladePooling": "sparse", "MultiVectorMask": "late-interaction"}
            hint = f": this is a {kinds[module.kind]} encoder" if module.kind in kinds else ""
            what = f"{folder / MODULES_NAME} has the module {module.type}, which is not supported"
            raise CheckpointError(f"{what}; supported are {', '.join(supported)}{hint}")


class SavedSettings(dict[str, Any]):
    """The JSON object in a file, empty if that is missing, with checks of its values; errors name the file."""

    def __init__(self, file: Path, values: Mapping[str, Any] | None = None):
        found = read_json_object(file) if file.is_file() and values is None else values
        super().__init__(found or {})
        self.file = file

    def wrong(self, key: str, expected: str) -> CheckpointError:
        """Return the error for the value of a key."""
        return CheckpointError(f"{self.file}: {key} is {self.get(key)!r:.200}, expected {expected}")

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a boolean, by default if the key is absent or null; the string "false" is refused as it is truthy."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(key, "true or false")
        return default if value is None else value

    def size(self, key: str, default: int | None = None) -> int | None:
        """Return a positive integer, by default if the key is absent or null."""
        value = self.get(key)
        if value is not None and (type(value) is not int or value < 1):
            raise self.wrong(key, "a positive integer or null")
        return default if value is None else value

    def choice(self, key: str, *known: str) -> str:
        """Return one of the `known` values, the first if the key is absent or null."""
        value = self.get(key) or known[0]
        if value not in known:
            raise self.wrong(key, f"one of {', '.join(known)}, or null")
        return value

    def texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the strings of a list, or a single one."""
        value = [self.get(key)] if isinstance(self.get(key), str) else self.get(key)
        if value is not None and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise self.wrong(key, "a list of strings, or null")
        return default if value is None else tuple(value)


def read_transformer(folder: Path, task: str | None) -> dict[str, Any]:
    """Return max_seq_length and do_lower_case of a Transformer module, which must be for `task`; None for any."""
    read = transformer_settings(folder)
    stated = read.get("transformer_task", task)
    if task is not None and stated != task:
        raise read.wrong("transformer_task", repr(task))
    return {"max_seq_length": read.size("max_seq_length"), "do_lower_case": read.flag("do_lower_case")}


def transformer_settings(folder: Path) -> SavedSettings:
    """Return the settings of the Transformer module in `folder`."""
    names = [name for name in TRANSFORMER_NAMES if (folder / name).is_file()]
    return SavedSettings(folder / (names or TRANSFORMER_NAMES)[0])


def saved_settings(folder: Path) -> SavedSettings:
    """Return the settings of the whole model in `folder`."""
    return SavedSettings(folder / SETTINGS_NAME)


def read_prompts(folder: Path) -> Prompts:
    """Return the prompts in the settings of the whole model."""
    read = saved_settings(folder)
    prompts, default = read.get("prompts"), read.get("default_prompt_name")
    prompts = {} if prompts is None else prompts
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise read.wrong("prompts", "an object of texts by name")
    if default is not None and (not isinstance(default, str) or default not in prompts):
        raise read.wrong("default_prompt_name", f"one of {', '.join(prompts) or 'none'}, or null")
    return Prompts(prompts, default)


def update_json(file: Path, values: dict[str, Any]) -> None:
    """Write `values` into a JSON object, which may not exist yet."""
    known = read_json_object(file) if file.is_file() else {}
    write_json(file, known | values)


def save_modules(modules: Iterable[Any], folder: Path) -> None:
    """Write modules of sentence-transformers by their own `save`, and modules.json. Raises TypeError for others."""
    kinds = {}
    for index, module in enumerate(modules):
        kind = type(module)
        if not callable(getattr(module, "save", None)):
            raise TypeError(f"modules[{index}] is {kind.__name__}, expected a module of sentence-transformers")
        path = "" if not index and kind.__name__ == "Transformer" else f"{index}_{kind.__name__}"
        (folder / path).mkdir(exist_ok=True)
        module.save(str(folder / path))
        kinds[path] = f"{kind.__module__}.{kind.__name__}"
    write_json(folder / MODULES_NAME, module_entries(kinds))

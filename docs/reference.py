"""The API pages: mkdocstrings' directives for public names, what users call first, without internals."""

import importlib
import inspect
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

# The order of a class's members; the others follow in the order of the source, properties last.
FIRST = ("from_pretrained", "from_config", "__call__", "generate", "encode", "encode_query", "encode_document")
FIRST += ("similarity", "predict", "rank", "train", "evaluate", "step", "save_pretrained", "save_model", "state_dict")
FIRST += ("load_state_dict",)
# Modules whose names `bertcore` offers, too, and which have a place on another page.
ELSEWHERE = ("bertcore.kernels", "bertcore.training", "bertcore.tasks.hard_negatives")
# Public to other modules of bertcore, not to users.
INTERNAL = """
added_to arguments attributes begin_step best_metric changed_share check check_has_labels checked checked_columns
choose_spans class_for_config columns compare config_to_save count_boundaries counts cut_length deciding_value
drops_unknown evaluated_together expected_scales expected_tensors field finished gain has_labels has_warned
hidden_states in_backward in_step in_use is_gradient_checkpointing is_of_texts is_one_pass is_part is_target
label_axes label_names label_scores labelled_row load_parts load_weights maps masking_settings max_words model_class
more_is_better most_nested move_to network numbered_collator of_differences of_embeddings options_class
other_weights packed_states padded pairs parameters pooled pooled_states precision predicts_next_words prepared
prompt_tokens rates_depend_on_length read_from reports routed rows_of rule skipped_tokens source
steps_between_evaluations takes_entities takes_float32 teacher token_row token_rows token_weights trained vectors
version words write_into
"""


def reference(module: str, patterns: Sequence[str], shown: dict[Any, str]) -> str:
    """Return mkdocstrings' directives for the public names of a module, in the order of the patterns that match them.

    A class has its members, and those of bases that are not public; a member that an earlier class of the page has is
    a link to it.
    Modules are left out, and from `bertcore` the names that have a place on another page. For
    "bertcore.tasks.pipelines" the names are the class of each task.

    Args:
        module: its name.
        patterns: as those of a shell; none for all names.
        shown: what the page has so far, {member: anchor}; written to.

    Raises:
        ValueError: for a pattern that no name matches.
    """
    parts, offered = [], _offered(module)
    for pattern in patterns or ("*",):
        found = [each for each in offered if fnmatchcase(each.__name__, pattern)]
        if not found:
            raise ValueError(f"<!-- include: reference -->: {pattern} is not a public name of {module}")
        parts += [_directive(each, shown, offered) for each in found if each not in shown]
    return "\n\n".join(parts)


def _offered(module: str) -> list[Any]:
    package = importlib.import_module(module)
    if module == "bertcore.tasks.pipelines":
        return [package.pipeline_class(task) for task in package.TASKS]
    names = getattr(package, "__all__", None) or [
        name
        for name, each in vars(package).items()
        if not name.startswith("_") and getattr(each, "__module__", None) == module
    ]
    named = [each for name in names if hasattr(each := getattr(package, name), "__qualname__")]
    return [each for each in named if module != "bertcore" or not each.__module__.startswith(ELSEWHERE)]


def _directive(named: Any, shown: dict[Any, str], offered: list[Any]) -> str:
    address = f"{named.__module__}.{named.__qualname__}"
    shown[named] = address
    if not isinstance(named, type):
        return f"::: {address}"
    own, elsewhere = [], {}
    for name, member in _members(named, offered):
        if member in shown:
            elsewhere[name] = shown[member]
        else:
            own.append(name)
            shown[member] = f"{address}.{name}"
    names = f"[{', '.join(own)}]" if own else "false"
    text = f"::: {address}\n    options: {{members: {names}, inherited_members: {names}}}"
    if elsewhere:
        owner = next(iter(elsewhere.values())).rpartition(".")[0]
        links = [f"[`{name}`][{target}]" for name, target in elsewhere.items()]
        more = " and others" if len(links) > 4 else ""
        text += f"\n\nAs in [`{owner.rpartition('.')[2]}`][{owner}]: {', '.join(links[:4])}{more}."
    return text


def _members(named: type, offered: list[Any]) -> list[tuple[str, Any]]:
    """Return the documented members of a class for users, each with what defines it, in the order of the page."""
    found: dict[str, Any] = {}
    for base in named.__mro__:
        if base.__module__.startswith("bertcore") and (base is named or base not in offered):
            for name, member in vars(base).items():
                found.setdefault(name, getattr(member, "__func__", member))
    methods = [
        (name, each)
        for name, each in found.items()
        if (name == "__call__" or not name.startswith("_")) and name not in INTERNAL.split()
        if (inspect.isfunction(each) or isinstance(each, property)) and each.__doc__
    ]
    order = {name: number for number, name in enumerate(FIRST)}
    return sorted(methods, key=lambda each: (order.get(each[0], len(order)), isinstance(each[1], property)))

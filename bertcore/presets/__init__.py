"""Presets: the published configs of the BERT family, and the facts of their papers.

Sizes are facts of each model's config.json on the Hugging Face hub. Parameters, FLOPs and memory are computed from the
model (`bertcore info`), never written down here.
"""

import copy
import difflib
from typing import Any

from .absolute import ABSOLUTE
from .preset import Preset
from .relative import RELATIVE_OR_CAUSAL, ROTARY

__all__ = ["PRESETS", "Preset", "preset", "preset_config"]

PRESETS: dict[str, Preset] = {one.name: one for one in (*ABSOLUTE, *RELATIVE_OR_CAUSAL, *ROTARY)}
NICKNAMES = {"mbert": "bert-base-multilingual-cased", "xlmr": "xlm-roberta-base"}
_BY_HUB_ID = {one.hub_id: one for one in PRESETS.values() if one.hub_id}


def preset(name: str) -> Preset:
    """Return the preset of that name, or of that id on the hub ("google-bert/bert-base-uncased").

    Raises ValueError, with similar names, for an unknown one, and TypeError for anything but a string.
    """
    if not isinstance(name, str):
        raise TypeError(f"name is {type(name).__name__}, expected a preset's name")
    found = PRESETS.get(name) or _BY_HUB_ID.get(name)
    if found is None:
        lower = name.lower()
        begin = [known for known in PRESETS if lower and known.startswith(lower)]
        begin += [NICKNAMES[lower]] if lower in NICKNAMES else []
        close = list(dict.fromkeys([*begin, *difflib.get_close_matches(lower, [*PRESETS, *_BY_HUB_ID], n=4)]))[:4]
        hint = f"; close to it are {', '.join(close)}" if close else ""
        raise ValueError(f"no preset is named {name!r}{hint} (`bertcore info` lists all {len(PRESETS)})")
    return found


def preset_config(name: str) -> dict[str, Any]:
    """Return a copy of a preset's config, for `Model.from_config`. Errors are as in `preset`."""
    return copy.deepcopy(dict(preset(name).config))

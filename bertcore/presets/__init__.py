"""Presets: the published configs of the family's members, and what their papers say of them.

Sizes are facts of each model's config.json on the Hugging Face hub. What follows from them (parameters, FLOPs, memory)
is computed from the model, never written down here: `bertcore info` shows it.
"""

import copy
import difflib
from typing import Any

from bertcore.presets.absolute import ABSOLUTE
from bertcore.presets.preset import Preset
from bertcore.presets.relative import RELATIVE_OR_CAUSAL
from bertcore.presets.rotary import ROTARY

__all__ = ["PRESETS", "Preset", "preset", "preset_config"]

PRESETS: dict[str, Preset] = {member.name: member for member in (*ABSOLUTE, *RELATIVE_OR_CAUSAL, *ROTARY)}
_BY_HUB_ID = {member.hub_id: member for member in PRESETS.values() if member.hub_id}


def preset(name: str) -> Preset:
    """The preset of that name, or of that id on the hub ("google-bert/bert-base-uncased").

    Raises ValueError, with the names that are close, if there is none.
    """
    found = PRESETS.get(name) or _BY_HUB_ID.get(name)
    if found is None:
        close = _close(name.lower())
        hint = f"; close to it are {', '.join(close)}" if close else ""
        raise ValueError(f"no preset is named {name!r}{hint} (`bertcore info` lists all {len(PRESETS)})")
    return found


def preset_config(name: str) -> dict[str, Any]:
    """A copy of the config of a preset, as `Model.from_config` takes it; errors are those of `preset`."""
    return copy.deepcopy(dict(preset(name).config))


def _close(name: str) -> list[str]:
    """Up to four names: those that begin so, then those that look alike."""
    begin = [known for known in PRESETS if name and known.startswith(name)]
    alike = difflib.get_close_matches(name, [*PRESETS, *_BY_HUB_ID], n=4)
    return list(dict.fromkeys([*begin, *alike]))[:4]

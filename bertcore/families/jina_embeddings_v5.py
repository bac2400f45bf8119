"""jina-embeddings-v5-text-nano (arXiv:2602.15547): EuroBERT with an adapter per task, in PEFT's files."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertcore.checkpoint import Adapters
from bertcore.families.eurobert import EUROBERT
from bertcore.models.registry import published_code, register
from bertcore.models.spec import ConfigReader
from bertcore.nn.spec import EncoderSpec

OWN_KEYS = frozenset({"task_names", "auto_map"})


def adapters(read: ConfigReader) -> Adapters:
    """Return the adapters of the tasks in task_names, each in a folder of that name."""
    tasks = read.names("task_names")
    for task in tasks:
        if not re.fullmatch(r"\w[\w.-]*", task):
            raise ValueError(f"config: task_names has {task!r}, expected plain folder names")
    return Adapters(tasks, folder="adapters")


def config_to_save(config: Mapping[str, Any], spec: EncoderSpec) -> Mapping[str, Any]:
    """Return a EuroBERT config without adapters, as one of them may be merged into the weights."""
    return {key: value for key, value in config.items() if key not in OWN_KEYS} | {"model_type": "eurobert"}


JINA_EMBEDDINGS_V5 = register(
    replace(
        EUROBERT,
        model_type="jina_embeddings_v5",
        adapters=adapters,
        config_to_save=config_to_save,
        code=published_code(
            *("modeling_jina_embeddings_v5", "configuration_jina_embeddings_v5"),
            repositories=("jinaai/jina-embeddings-v5-text-nano",),
        ),
    )
)

"""Rows of the table of families (`family_table.py`), and the unusual configs that every family is tested with."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from bertcore.models.architectures import models_of

TASKS = (
    *("MaskedLM", "PreTraining", "NextSentencePrediction", "SequenceClassification", "TokenClassification"),
    *("QuestionAnswering", "MultipleChoice", "CausalLM"),
)


SIZES = {"vocab_size": 61, "hidden_size": 39, "num_attention_heads": 3, "intermediate_size": 53, "num_hidden_layers": 2}
SIZES |= {"max_position_embeddings": 24, "num_labels": 3}
EVEN = SIZES | {"hidden_size": 36}  # rotary positions turn pairs


class Variant(NamedTuple):
    """Changes of a family's config, the batch to try them with, and the head (None: that of the words)."""

    changes: Mapping[str, Any]
    lengths: tuple[int, ...] | None = None  # of the batch's texts; None: those of the family's row
    task: str | None = None
    padding: str = "right"  # "left" or "holes"; "words": padding's word among the others, which are to be seen


# Of every family, under BERT's keys.
COMMON = {
    "one head, one token": Variant({"num_attention_heads": 1}, (1, 1, 1)),
    "heads of 160, primes": Variant(
        {"hidden_size": 320, "num_attention_heads": 2, "num_hidden_layers": 1, "hidden_act": "relu"}, (23, 17, 2, 13)
    ),
    "up to the longest": Variant({"max_position_embeddings": 11}, tuple(range(1, 12))),
    "padding that is word 5": Variant({"pad_token_id": 5}, (9, 4)),
    "decoder of its own": Variant({"tie_word_embeddings": False, "hidden_act": "gelu_new"}, (6, 9)),
    "padding on the left": Variant({}, padding="left"),
    "holes": Variant({}, padding="holes"),
}


@dataclass(frozen=True)
class FamilyCase:
    """A row of the table."""

    config: Mapping[str, Any]  # small, with widths that are no multiples of 8, as transformers spells it
    # beside those of COMMON, or in place of them; None: that one does not apply
    variants: Mapping[str, Variant | None] = field(default_factory=dict)
    lengths: tuple[int, ...] = (11, 1, 7)  # of the texts of a batch
    everything: Mapping[str, Any] = field(default_factory=dict)  # for the one variant that every backend and dtype runs
    in_task: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # changes that a task needs
    keys: Mapping[str, str] = field(default_factory=dict)  # BERT's keys -> the family's own
    # what transformers counts positions by: "columns", padding on the left too; "words", not the padding's; None where
    # they are relative
    counts: str | None = None
    padding_word: int | None = None  # what transformers takes for padding whatever pad_token_id says
    has_peer: bool = True  # whether transformers has the family
    copies: Mapping[str, str] = field(default_factory=dict)  # that published files repeat: name -> the parameter
    refused: Mapping[str, Any] = field(default_factory=dict)  # values of keys that are an error
    elsewhere: tuple[str, ...] = ()  # tasks that transformers has no model for, or one with a decoder (T5)
    is_recorded: bool = True  # whether its encoder is one recorded program on Numba
    # the family whose layers it has, and which is tried with unusual configs, backends and dtypes for it
    layers_of: str | None = None

    @cached_property
    def tasks(self) -> tuple[str, ...]:
        """The tasks that the family has a head for; PreTraining unless that is MaskedLM under another name."""
        models = models_of(self.config)
        known = [task for task in TASKS if f"AutoModelFor{task}" in models and task not in self.elsewhere]
        if "PreTraining" in known and tuple(models["AutoModelForPreTraining"].tasks) == ("masked_lm",):
            known.remove("PreTraining")
        return tuple(known)

    @property
    def words(self) -> str:
        """The task of the words: MaskedLM, or CausalLM; of a family that has neither its first one."""
        return next((task for task in ("MaskedLM", "CausalLM") if task in self.tasks), self.tasks[0])

    def with_changes(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The config with these changes, under BERT's keys or its own."""
        return {**self.config, **{self.keys.get(key, key): value for key, value in changes.items()}}

    @property
    def all_variants(self) -> dict[str, Variant]:
        """The variants of COMMON that apply, and the family's own."""
        return {name: variant for name, variant in (COMMON | self.variants).items() if variant is not None}


def tied_to(words: str, *decoders: str, bias: str | None = None) -> dict[str, str]:
    """The copies of a decoder's weight, and of its bias `bias`, that published files hold."""
    copies = {f"{decoder}.weight": f"{words}.weight" for decoder in decoders}
    return copies | ({f"{decoder}.bias": bias for decoder in decoders} if bias else {})

"""Preview of objectives: a text as masked, ordered and replaced, epoch after epoch."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np

from bertcore.arguments import check_count
from bertcore.training.collators import NumberedCollator
from bertcore.training.masking import IGNORED, Masking
from bertcore.training.objectives.language_modeling import SPANS, MaskedLM, PermutationLM

WIDTH = 100
MASKS = {
    "masked words, static: the same in every epoch": MaskedLM(Masking(is_static=True)),
    "masked words, dynamic: anew in every epoch": MaskedLM(),
    "whole words": MaskedLM(Masking(unit="word")),
    "spans of words: each also predicted from the tokens beside its span (span boundaries)": MaskedLM(SPANS),
}
WORDS_AT_RANDOM = MaskedLM(Masking(mask_share=0.0, random_share=1.0))
LEGEND = (
    "GIVEN/WANTED: a token in the model's input, and the one to be predicted there. Of ten chosen tokens, eight "
    "become [MASK], one becomes another word and one stays. A token without / is given as it is and not predicted."
)
ORDER = (
    "permutation: TOKEN/N is the Nth to be predicted, from tokens without a number and those with a lower one; the "
    "model sees no mask, and no token that is predicted later"
)
REPLACED = (
    "replaced tokens: TOKEN/! is not the text's own; the discriminator decides this for every token (words drawn at "
    "random stand in for a generator's)"
)


def preview(text: str, tokenizer: Any, *, epochs: int = 3, seed: int = 0) -> str:
    """Return a text as objectives present it to a model, over some epochs, as printable lines.

    They show masked words, static beside dynamic, whole words and spans (Devlin et al. 2018; Liu et al. 2019; Joshi et
    al. 2020), the order of permutation language modelling (Yang et al. 2019), and replaced tokens (Clark et al. 2020).

        print(preview("the cat sat on the mat", tokenizer))

    Args:
        text: the text, which is not cut.
        tokenizer: with a mask token.
        epochs: how often the text is presented.
        seed: of the random choices.

    Raises:
        TypeError: unless text is a string.
        ValueError: for a tokenizer without a mask, and fewer than one epoch.
    """
    if not isinstance(text, str):
        raise TypeError(f"text is {type(text).__name__}, expected a string")
    numbers = range(check_count("epochs", epochs))
    example = tokenizer(text)
    lines = textwrap.wrap(LEGEND, WIDTH)
    options = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": " " * 5}
    sections = [(title, objective, _masked) for title, objective in MASKS.items()]
    sections += (ORDER, PermutationLM(), _ordered), (REPLACED, WORDS_AT_RANDOM, _replaced)
    for title, objective, shown in sections:
        lines += ["", *textwrap.wrap(title, WIDTH)]
        collate = NumberedCollator(objective.collator(tokenizer), seed)
        for epoch in numbers:  # batches are numbered as `Trainer` does
            tokens = " ".join(shown(collate([example], epoch), tokenizer))
            lines += textwrap.wrap(tokens, WIDTH, initial_indent=f"  {epoch + 1}  ", **options)
    return "\n".join(lines)


def _masked(batch: Mapping[str, Any], tokenizer: Any) -> list[str]:
    """Return the tokens of a masked batch: the given one, and the wanted one where there is a label."""
    given, labels = batch["input_ids"][0], batch["labels"][0]
    wanted = tokenizer.convert_ids_to_tokens(np.where(labels == IGNORED, given, labels).tolist())
    given = tokenizer.convert_ids_to_tokens(given.tolist())
    rows = zip(given, wanted, labels, strict=True)
    return [token if label == IGNORED else f"{token}/{own}" for token, own, label in rows]


def _ordered(batch: Mapping[str, Any], tokenizer: Any) -> list[str]:
    """Return the tokens of a permutation batch, the predicted ones with their place in the order."""
    tokens = tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
    for place, column in np.argwhere(batch["target_mapping"][0]):
        tokens[column] += f"/{place + 1}"
    return tokens


def _replaced(batch: Mapping[str, Any], tokenizer: Any) -> list[str]:
    """Return the tokens of a batch with random words, the replaced ones marked."""
    given, labels = batch["input_ids"][0], batch["labels"][0]
    is_replaced = (labels != IGNORED) & (labels != given)
    tokens = tokenizer.convert_ids_to_tokens(given.tolist())
    return [f"{token}/!" if replaced else token for token, replaced in zip(tokens, is_replaced, strict=True)]

"""Texts that go on from others."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count
from bertcore.kernels import checks
from bertcore.tasks.long_texts import Cutting, Text, Window
from bertcore.tasks.pipelines.base import CallOptions, Pipeline
from bertcore.tasks.texts import checked_text

MOST_NEW = 256


@dataclass(frozen=True)
class GenerationOptions(CallOptions):
    """What a call may say, beside `CallOptions`; a text that leaves no room for new words is an error by default.

    Attributes:
        truncation: "error" by default; "chunk" makes no sense here.
        max_new_tokens: how many words are appended at most; by default 256, or what the model has positions for.
        do_sample: whether words are drawn; by default they are, unless there are beams.
        temperature, top_k, top_p, num_beams, length_penalty, num_return_sequences, seed: as for
            `AutoModelForCausalLM.generate`; a temperature of 0.7 by default.
        return_full_text: whether answers begin with the text that was given.
    """

    truncation: Any = "error"
    max_new_tokens: int | None = None
    do_sample: bool | None = None
    temperature: float = 0.7
    top_k: int | None = None
    top_p: float = 1.0
    num_beams: int = 1
    length_penalty: float = 1.0
    num_return_sequences: int = 1
    seed: int | None = None
    return_full_text: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.truncation == "chunk":
            raise ValueError("truncation is 'chunk', expected 'error', 'warn' or True: a text goes on from one place")
        if self.max_new_tokens is not None:
            check_count("max_new_tokens", self.max_new_tokens)
        if self.seed is not None:
            checks.seed("seed", self.seed)
        checks.boolean("return_full_text", self.return_full_text)


class TextGenerationPipeline(Pipeline):
    """Continuations of each text: [{"generated_text"}], one for each of `num_return_sequences`.

    With a `seed` the same inputs in the same batches give the same texts. Options: `GenerationOptions`.
    """

    task = "text-generation"
    options_class = GenerationOptions
    _model_class = "AutoModelForCausalLM"
    _head = "language model's head"

    def _cutting(self, options: Any) -> Cutting:
        positions = self.model.spec.longest_sequence
        if options.max_length is not None or positions is None:
            return super()._cutting(options)
        longest = positions + 1 - (options.max_new_tokens or 1)  # the last new word is not read
        if longest < 1:
            raise ValueError(f"max_new_tokens is {options.max_new_tokens}, the model has {positions} positions")
        return Cutting(options.truncation, longest)

    def _texts(self, item: Any, name: str, options: Any) -> list[Text]:
        if not checked_text(name, item):
            raise ValueError(f"{name} is empty, expected a text to go on from")
        return [Text(item)]

    def _read(self, windows: Sequence[Window], arrays: Mapping[str, np.ndarray], options: Any) -> Sequence[Any]:
        ids, count = arrays["input_ids"], options.num_return_sequences
        names = ("temperature", "top_k", "top_p", "num_beams", "length_penalty", "num_return_sequences")
        made = self.model.generate(
            ids,
            arrays["attention_mask"],
            max_new_tokens=self._most_new(ids.shape[1], options),
            do_sample=options.num_beams == 1 if options.do_sample is None else options.do_sample,
            # Batches are told apart by their words, so that not all draw the same.
            seed=None if options.seed is None else options.seed + zlib.crc32(ids.tobytes()),
            **{name: getattr(options, name) for name in names},
        )
        new = kernels.to_host(made)[:, ids.shape[1] :].reshape(len(windows), count, -1)
        return [(window.ids, rows.tolist()) for window, rows in zip(windows, new, strict=True)]

    def _most_new(self, length: int, options: GenerationOptions) -> int:
        if options.max_new_tokens is not None:
            return options.max_new_tokens
        positions = self.model.spec.longest_sequence
        return MOST_NEW if positions is None else min(MOST_NEW, positions + 1 - length)

    def _answer(self, item: Any, name: str, kept: list[list[Any]], options: Any) -> list[dict[str, str]]:
        given, continuations = kept[0][0]
        decode = self.tokenizer.decode
        before = decode(given, skip_special_tokens=True)
        answers = []
        for new in continuations:
            # Decoded together: how a word is written may depend on the one before it.
            added = decode([*given, *new], skip_special_tokens=True)[len(before) :]
            answers.append({"generated_text": item + added if options.return_full_text else added})
        return answers

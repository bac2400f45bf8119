"""Pipelines of pretrained models: masked words, text generation, hidden states, next sentences."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count
from bertcore.kernels import checks
from bertcore.models import auto
from bertcore.tasks.long_texts import Cutting, Text, Window, merged, owned
from bertcore.tasks.pipelines.base import Arrays, CallOptions, Pipeline
from bertcore.tasks.sequence_scores import softmax
from bertcore.tasks.texts import check_words, checked_text
from bertcore.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class FillMaskOptions(CallOptions):
    """Options of a call, in addition to `CallOptions`.

    Attributes:
        top_k: number of words to return for each mask.
        targets: the words to choose from, each a single token; by default the whole vocabulary.
    """

    top_k: int = 5
    targets: str | Sequence[str] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("top_k", self.top_k)


@dataclass(frozen=True)
class _Masks:
    """The masks of a window: their columns, their positions in the text, and the best words of each."""

    ids: list[int]
    columns: list[int]
    places: list[int]
    words: np.ndarray
    scores: np.ndarray


class FillMaskPipeline(Pipeline):
    """Predict the words of each mask: [{"score", "token", "token_str", "sequence"}], most probable first.

    A text with several masks gets one such list per mask, from left to right; each mask is predicted separately, with
    the others masked. As in transformers, a list of one text is answered like the text itself. score is the probability
    over the model's whole vocabulary; sequence is the text with the word inserted (with truncation "chunk", the window
    that the mask is read in). Options: `FillMaskOptions`.
    """

    task = "fill-mask"
    options_class = FillMaskOptions
    model_classes = (auto.AutoModelForMaskedLM,)
    _head = "masked language modeling head"

    def __init__(self, model: auto.AutoModelForMaskedLM, tokenizer: Tokenizer, **options: Any):
        if tokenizer.mask_token is None:
            raise ValueError("this model's tokenizer has no mask token, so it cannot do fill-mask")
        super().__init__(model, tokenizer, **options)

    def _call(self, inputs: Any, options: FillMaskOptions) -> Any:
        answers = super()._call(inputs, options)
        return answers[0] if isinstance(inputs, list) and len(inputs) == 1 else answers

    def _options(self, given: Mapping[str, Any]) -> FillMaskOptions:
        options = super()._options(given)
        if options.targets is not None:
            self._target_ids(options.targets)
        return options

    def _target_ids(self, targets: str | Sequence[str]) -> list[int]:
        words = [targets] if isinstance(targets, str) else targets
        check_words("targets", words)
        if not words:
            raise ValueError("targets is empty, expected words")
        vocabulary, found = self.tokenizer.get_vocab(), []
        for word in words:
            ids = [vocabulary[word]] if word in vocabulary else self.tokenizer.encode(word, add_special_tokens=False)
            if len(ids) != 1 or ids[0] == self.tokenizer.unk_token_id:
                raise ValueError(f"targets has {word!r}, which is {len(ids)} tokens or unknown, expected one token")
            found.append(ids[0])
        return list(dict.fromkeys(found))

    def _read(self, windows: Sequence[Window], arrays: Arrays, options: FillMaskOptions) -> Sequence[Any]:
        masked = (arrays["input_ids"] == self.tokenizer.mask_token_id) & (arrays["attention_mask"] == 1)
        words = scores = np.zeros((0, 0))
        if masked.any():  # logits of masks only: those of all tokens would take most of the memory
            labels = np.where(masked, 0, -100)
            logits = kernels.to_host(self.model.label_scores(**arrays, labels=labels)[0])
            words, scores = self._best(logits, options)
        found, first = [], 0
        for row, window in enumerate(windows):
            columns = np.flatnonzero(masked[row]).tolist()
            rows = slice(first, first + len(columns))
            first += len(columns)
            places = window.offsets[columns, 0].tolist() if columns else []
            found.append(_Masks(list(window.ids), columns, places, words[rows], scores[rows]))
        return found

    def _best(self, logits: np.ndarray, options: FillMaskOptions) -> tuple[np.ndarray, np.ndarray]:
        """Return ids and probabilities of the best words of each row, (masks, top_k)."""
        # The model's vocabulary is often rounded up: ids beyond the tokenizer's are not words.
        choices = np.arange(min(len(self.tokenizer), logits.shape[1]))
        if options.targets is not None:
            choices = np.array(self._target_ids(options.targets))
        probabilities = softmax(logits)[:, choices]
        order = np.argsort(-probabilities, axis=1, kind="stable")[:, : options.top_k]
        return choices[order], np.take_along_axis(probabilities, order, axis=1)

    def _answer(self, item: Any, name: str, kept: list[list[Any]], options: FillMaskOptions) -> list[Any]:
        read = {}  # a mask in two windows is read in the one in which it is further from the edge
        for masks in kept[0]:
            for number, (column, place) in enumerate(zip(masks.columns, masks.places, strict=True)):
                margin = min(column, len(masks.ids) - column)
                if place not in read or margin > read[place][0]:
                    read[place] = margin, masks, number
        if not read:
            mask, length = self.tokenizer.mask_token, self._cutting(options).max_length
            if mask in item:
                expected = "truncation='chunk' reads all of it"
                raise ValueError(f"{name} has {mask} beyond the {length} tokens that are read: {expected}")
            raise ValueError(f"{name} has no {mask}: put {mask} in place of the word to predict")
        answers = [self._words(*read[place][1:], alone=len(read) == 1) for place in sorted(read)]
        return answers[0] if len(answers) == 1 else answers

    def _words(self, masks: _Masks, number: int, *, alone: bool) -> list[dict[str, Any]]:
        answers = []
        for word, score in zip(masks.words[number].tolist(), masks.scores[number].tolist(), strict=True):
            ids = [*masks.ids]
            ids[masks.columns[number]] = word
            # Special tokens are left out unless that would remove other masks.
            text = self.tokenizer.decode(ids, skip_special_tokens=alone)
            spelled = self.tokenizer.decode([word])
            answers.append({"score": score, "token": word, "token_str": spelled, "sequence": text})
        return answers


MOST_NEW = 256  # default number of generated tokens


@dataclass(frozen=True)
class GenerationOptions(CallOptions):
    """Options of a call, in addition to `CallOptions`; by default a text that fills all positions is an error.

    Attributes:
        truncation: "error" by default; "chunk" is not supported.
        max_new_tokens: maximum number of new tokens; by default 256, or the model's remaining positions.
        do_sample: whether to sample tokens; the default is True, except with beams.
        temperature, top_k, top_p, num_beams, length_penalty, num_return_sequences, seed: as for
            `AutoModelForCausalLM.generate`; the default temperature is 0.7.
        return_full_text: whether answers begin with the given text.
    """

    truncation: bool | str = "error"
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
            expected = "'error', 'warn' or True: a text is continued at one place"
            raise ValueError(f"truncation is 'chunk', expected {expected}")
        if self.max_new_tokens is not None:
            check_count("max_new_tokens", self.max_new_tokens)
        if self.seed is not None:
            checks.seed("seed", self.seed)
        checks.boolean("return_full_text", self.return_full_text)


class TextGenerationPipeline(Pipeline):
    """Continue each text: returns [{"generated_text"}, ...] with `num_return_sequences` entries.

    With a `seed`, the same inputs in the same batches produce the same texts. Options: `GenerationOptions`.
    """

    task = "text-generation"
    options_class = GenerationOptions
    model_classes = (auto.AutoModelForCausalLM,)
    _head = "language model's head"

    def _cutting(self, options: Any) -> Cutting:
        positions = self.model.spec.longest_sequence
        if options.max_length is not None or positions is None:
            return super()._cutting(options)
        longest = positions + 1 - (options.max_new_tokens or 1)  # the last new token is not read
        if longest < 1:
            raise ValueError(f"max_new_tokens is {options.max_new_tokens}, the model has {positions} positions")
        return Cutting(options.truncation, longest)

    def _texts(self, item: Any, name: str, options: GenerationOptions) -> list[Text]:
        if not checked_text(name, item):
            raise ValueError(f"{name} is empty, expected a text to continue")
        return [Text(item)]

    def _read(self, windows: Sequence[Window], arrays: Arrays, options: GenerationOptions) -> Sequence[Any]:
        ids, count = arrays["input_ids"], options.num_return_sequences
        names = ("temperature", "top_k", "top_p", "num_beams", "length_penalty", "num_return_sequences")
        given, most, positions = vars(options), options.max_new_tokens, self.model.spec.longest_sequence
        if most is None:
            most = MOST_NEW if positions is None else min(MOST_NEW, positions + 1 - ids.shape[1])
        how = {name: given[name] for name in names} | {"max_new_tokens": most}
        how["do_sample"] = options.num_beams == 1 if options.do_sample is None else options.do_sample
        # Different batches get different seeds, so that they do not draw the same tokens.
        how["seed"] = None if options.seed is None else options.seed + zlib.crc32(ids.tobytes())
        made = self.model.generate(ids, arrays["attention_mask"], **how)
        new = kernels.to_host(made)[:, ids.shape[1] :].reshape(len(windows), count, -1)
        return [(window.ids, rows.tolist()) for window, rows in zip(windows, new, strict=True)]

    def _answer(self, item: Any, name: str, kept: list[list[Any]], options: GenerationOptions) -> list[dict[str, str]]:
        given, continuations = kept[0][0]
        decode = self.tokenizer.decode
        before = decode(given, skip_special_tokens=True)
        # Decoded together: the spelling of a token may depend on the one before it.
        added = (decode([*given, *new], skip_special_tokens=True)[len(before) :] for new in continuations)
        return [{"generated_text": item + text if options.return_full_text else text} for text in added]


@dataclass(frozen=True)
class FeatureOptions(CallOptions):
    """Options of a call, in addition to `CallOptions`.

    Attributes:
        return_tensors: whether an answer is a float32 array instead of lists.
    """

    return_tensors: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.boolean("return_tensors", self.return_tensors)


class FeatureExtractionPipeline(Pipeline):
    """Return the last hidden state of each text, (1, tokens, hidden), including special tokens, as lists or an array.

    In a text that is read in windows ("chunk") each token comes from the window in which it has more context.
    Options: `FeatureOptions`.
    """

    task = "feature-extraction"
    options_class = FeatureOptions
    model_classes = (auto.AutoModel,)
    _head = "encoder"
    _model_options: ClassVar = {"add_pooling_layer": False}

    def _read(self, windows: Sequence[Window], arrays: Arrays, options: FeatureOptions) -> Sequence[Any]:
        hidden = kernels.to_host(self.model(**arrays).last_hidden_state)
        ends = [None if options.padding == "max_length" else len(window) for window in windows]
        rows = zip(hidden, ends, windows, strict=True)
        return [(states[:end].copy(), window.content, window.shared) for states, end, window in rows]

    def _answer(self, item: object, name: str, kept: list[list[Any]], options: FeatureOptions) -> np.ndarray | list:
        states = _whole(kept[0])[None]
        return states if options.return_tensors else states.tolist()


def _whole(kept: Sequence[tuple[np.ndarray, np.ndarray, int]]) -> np.ndarray:
    """Return the states of all tokens of a text, (tokens, hidden), special tokens from its first and last window."""
    if len(kept) == 1:
        return kept[0][0]
    slices = owned([len(content) for _, content, _ in kept], [shared for _, _, shared in kept])
    parts = [hidden[content[part]] for (hidden, content, _), part in zip(kept, slices, strict=True)]
    (first, opening, _), (last, closing, _) = kept[0], kept[-1]
    return np.concatenate([first[: opening[0]], *parts, last[closing[-1] + 1 :]])


class NextSentencePredictionPipeline(Pipeline):
    """Predict whether the second text of each pair follows the first: {"is_next", "not_next"}, probabilities.

    An input is {"text", "text_pair"}. With truncation "chunk" the answer is the windows' mean, weighted by tokens.
    Source: Devlin et al. 2019, arXiv:1810.04805. Options: `CallOptions`.
    """

    task = "next-sentence-prediction"
    model_classes = (auto.AutoModelForNextSentencePrediction,)
    _head = "next sentence prediction head"
    _keys = "text", "text_pair"

    def _texts(self, item: object, name: str, options: CallOptions) -> list[Text]:
        return [Text(*self._pair(item, name))]

    def _read(self, windows: Sequence[Window], arrays: Arrays, options: CallOptions) -> Sequence[Any]:
        return list(zip(softmax(kernels.to_host(self.model(**arrays).logits)), map(len, windows), strict=True))

    def _answer(self, item: object, name: str, kept: list[list[Any]], options: CallOptions) -> dict[str, float]:
        is_next, not_next = merged(kept[0], "mean").tolist()
        return {"is_next": is_next, "not_next": not_next}

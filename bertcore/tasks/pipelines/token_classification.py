"""Classes of tokens, and entities: neighbouring tokens of one class put together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bertcore import kernels
from bertcore.kernels import checks
from bertcore.tasks.long_texts import Window, owned
from bertcore.tasks.pipelines.base import CallOptions, Pipeline
from bertcore.tasks.sequence_scores import softmax
from bertcore.tasks.texts import check_words

STRATEGIES = ("none", "simple", "first", "average", "max")


@dataclass(frozen=True)
class TaggingOptions(CallOptions):
    """What a call may say, beside `CallOptions`.

    Attributes:
        aggregation_strategy: "none" answers token by token; "simple" puts neighbouring tokens of one class together,
            by the B- and I- of the classes' names; "first", "average" and "max" do so with whole words, whose class is
            that of the first token, of the tokens' mean probabilities, or of the token that is most certain.
        ignore_labels: classes that are left out of the answer.
    """

    aggregation_strategy: str = "none"
    ignore_labels: Sequence[str] = ("O",)

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.choice("aggregation_strategy", self.aggregation_strategy, STRATEGIES)
        check_words("ignore_labels", self.ignore_labels)


@dataclass(frozen=True)
class _Scored:
    """The tokens of one window, without special ones: their ids, characters and probabilities."""

    ids: np.ndarray
    offsets: np.ndarray
    probabilities: np.ndarray
    shared: int
    before: int  # special tokens before them


@dataclass(frozen=True)
class _Token:
    """A token, or a word: its probabilities, its text, its characters, its place in the row."""

    scores: np.ndarray
    word: str
    start: int
    end: int
    index: int
    is_subword: bool


class TokenClassificationPipeline(Pipeline):
    """The tokens of each text that are of a class, {"entity", "score", "index", "word", "start", "end"}, or with an
    aggregation strategy the entities, {"entity_group", "score", "word", "start", "end"}.

    start and end are characters: text[start:end] is what was found. Of a text that is read in windows ("chunk") each
    token is tagged in the window in which it has more context, and entities are made of the tags of the whole text.
    Options: `TaggingOptions`.
    """

    task = "token-classification"
    options_class = TaggingOptions
    _model_class = "AutoModelForTokenClassification"
    _head = "classifier of tokens"

    def _read(self, windows: Sequence[Window], arrays: Mapping[str, np.ndarray], options: Any) -> Sequence[Any]:
        logits = kernels.to_host(self.model(**arrays).logits)
        return [self._scored(window, logits[row]) for row, window in enumerate(windows)]

    def _scored(self, window: Window, logits: np.ndarray) -> _Scored:
        columns = window.content
        ids = np.array(window.ids, np.int64)[columns]
        before = int(columns[0]) if columns.size else 0
        return _Scored(ids, window.offsets[columns], softmax(logits[columns]), window.shared, before)

    def _answer(self, item: Any, name: str, kept: list[list[Any]], options: Any) -> list[dict[str, Any]]:
        tokens = list(self._tokens(item, kept[0]))
        strategy, ignored = options.aggregation_strategy, set(options.ignore_labels)
        if strategy == "none":
            found = (self._tagged(token) | {"index": token.index} for token in tokens)
            keys = ("entity", "score", "index", "word", "start", "end")
            return [{key: each[key] for key in keys} for each in found if each["entity"] not in ignored]
        words = tokens if strategy == "simple" else self._words(tokens, strategy)
        groups = _groups([self._tagged(word) for word in words])
        entities = (self._entity(group, strategy) for group in groups)
        return [entity for entity in entities if entity["entity_group"] not in ignored]

    def _tokens(self, text: str, windows: Sequence[_Scored]) -> Iterator[_Token]:
        slices = owned([len(window.ids) for window in windows], [window.shared for window in windows])
        index = windows[0].before if windows else 0
        for window, part in zip(windows, slices, strict=True):
            names = self.tokenizer.convert_ids_to_tokens(window.ids[part].tolist())
            rows = zip(names, window.ids[part], window.offsets[part].tolist(), window.probabilities[part], strict=True)
            for word, number, (start, end), scores in rows:
                is_subword = self._is_subword(text, word, start, end)
                if number == self.tokenizer.unk_token_id:
                    word, is_subword = text[start:end], False
                yield _Token(scores, word, start, end, index, is_subword)
                index += 1

    def _is_subword(self, text: str, token: str, start: int, end: int) -> bool:
        """Whether a token goes on a word: WordPiece marks it, of others spaces tell."""
        if self._marks_subwords:
            return len(token) != end - start
        return start > 0 and " " not in text[start - 1 : start + 1]

    @property
    def _marks_subwords(self) -> bool:
        return bool(getattr(self.tokenizer._backend.model, "continuing_subword_prefix", None))

    def _tagged(self, token: _Token) -> dict[str, Any]:
        best = int(token.scores.argmax())
        return {
            "entity": self.id2label[best], "score": float(token.scores[best]), "word": token.word,
            "start": token.start, "end": token.end,
        }  # fmt: skip

    def _words(self, tokens: Iterable[_Token], strategy: str) -> list[_Token]:
        words: list[list[_Token]] = []
        for token in tokens:
            if words and token.is_subword:
                words[-1].append(token)
            else:
                words.append([token])
        return [self._word(parts, strategy) for parts in words]

    def _word(self, parts: Sequence[_Token], strategy: str) -> _Token:
        if strategy == "average":
            scores = np.mean([part.scores for part in parts], axis=0)
        else:
            scores = parts[0].scores if strategy == "first" else max((p.scores for p in parts), key=np.max)
        text = self.tokenizer.convert_tokens_to_string([part.word for part in parts])
        return _Token(scores, text, parts[0].start, parts[-1].end, parts[0].index, False)

    def _entity(self, group: Sequence[Mapping[str, Any]], strategy: str) -> dict[str, Any]:
        words = [each["word"] for each in group]
        return {
            "entity_group": group[0]["entity"].split("-", 1)[-1],
            "score": float(np.mean([each["score"] for each in group])),
            "word": self.tokenizer.convert_tokens_to_string(words),
            "start": group[0]["start"],
            "end": group[-1]["end"],
        }


def _groups(tagged: Iterable[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Neighbours of one kind; what a B- begins is a group of its own."""
    groups: list[list[Mapping[str, Any]]] = []
    for each in tagged:
        begins, kind = _kind(each["entity"])
        if groups and not begins and kind == _kind(groups[-1][-1]["entity"])[1]:
            groups[-1].append(each)
        else:
            groups.append([each])
    return groups


def _kind(entity: str) -> tuple[bool, str]:
    """Whether a tag begins an entity, and of which kind; names without B- and I- go on."""
    if entity.startswith(("B-", "I-")):
        return entity[0] == "B", entity[2:]
    return False, entity

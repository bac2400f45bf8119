"""Spans of texts: classes of tokens, entities, and answers to questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from bertcore import kernels
from bertcore.arguments import check_count
from bertcore.kernels import checks
from bertcore.models import auto
from bertcore.tasks.long_texts import Cutting, Text, Window, owned
from bertcore.tasks.pipelines.base import Answers, Arrays, CallOptions, Pipeline
from bertcore.tasks.sequence_scores import softmax
from bertcore.tasks.texts import check_words

STRATEGIES = ("none", "simple", "first", "average", "max")
Item = TypeVar("Item")


@dataclass(frozen=True)
class TaggingOptions(CallOptions):
    """Options of a call, in addition to `CallOptions`.

    Attributes:
        aggregation_strategy: "none" answers token by token; "simple" joins neighbouring tokens of one class, by the
            prefixes B- and I- of class names; "first", "average" and "max" join whole words, classified by their first
            token, by their tokens' mean probabilities, or by their most probable token.
        ignore_labels: classes to leave out of the answer.
        is_split_into_words: an input is a list of words, and characters are those of the words joined by spaces.
    """

    aggregation_strategy: str = "none"
    ignore_labels: Sequence[str] = ("O",)
    is_split_into_words: bool = False

    def __post_init__(self) -> None:
        if self.stride is not None and self.truncation == "warn":
            object.__setattr__(self, "truncation", "chunk")
        super().__post_init__()
        checks.choice("aggregation_strategy", self.aggregation_strategy, STRATEGIES)
        check_words("ignore_labels", self.ignore_labels)
        checks.boolean("is_split_into_words", self.is_split_into_words)


@dataclass(frozen=True)
class _Scored:
    """The tokens of one window without special tokens: ids, characters and probabilities."""

    ids: np.ndarray
    offsets: np.ndarray
    probabilities: np.ndarray
    shared: int
    before: int  # number of special tokens before them


@dataclass(frozen=True)
class _Token:
    """A token or a word: its probabilities, text, characters, and index in the row."""

    scores: np.ndarray
    word: str
    start: int
    end: int
    index: int
    is_subword: bool


class TokenClassificationPipeline(Pipeline):
    """Classify the tokens of each text: {"entity", "score", "index", "word", "start", "end"} each.

    With an aggregation strategy the answers are entities, {"entity_group", "score", "word", "start", "end"}.

    start and end are characters: text[start:end] is the token or entity. In a text that is read in windows ("chunk", or
    a stride as in transformers) each token is classified in the window in which it has more context; entities are built
    from the whole text. Options: `TaggingOptions`.
    """

    task = "token-classification"
    options_class = TaggingOptions
    model_classes = (auto.AutoModelForTokenClassification,)
    _head = "classifier of tokens"

    def _call(self, inputs: Any, options: TaggingOptions) -> Any:
        if options.is_split_into_words:
            if isinstance(inputs, list) and all(isinstance(word, str) for word in inputs):
                inputs = [inputs]
            self._check_several(inputs)
            joined = (_joined(words, f"inputs[{number}]") for number, words in enumerate(inputs))
            inputs = list(joined) if hasattr(inputs, "__len__") else joined
        return super()._call(inputs, options)

    def _read(self, windows: Sequence[Window], arrays: Arrays, options: TaggingOptions) -> Sequence[Any]:
        logits = kernels.to_host(self.model(**arrays).logits)
        found = []
        for window, scores in zip(windows, logits, strict=True):
            columns = window.content
            ids, before = np.array(window.ids, np.int64)[columns], int(columns[0]) if columns.size else 0
            found.append(_Scored(ids, window.offsets[columns], softmax(scores[columns]), window.shared, before))
        return found

    def _answer(self, item: str, name: str, kept: list[list[Any]], options: TaggingOptions) -> list[dict[str, Any]]:
        tokens: Iterable[_Token] = self._tokens(item, kept[0])
        strategy, ignored = options.aggregation_strategy, set(options.ignore_labels)
        if strategy not in ("none", "simple"):
            tokens = [self._word(parts, strategy) for parts in _runs(tokens, lambda last, token: token.is_subword)]
        tagged = [self._tagged(token) for token in tokens]
        if strategy == "none":
            return [each for each in tagged if each["entity"] not in ignored]
        entities = (self._entity(group) for group in _runs(tagged, _is_same_entity))
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
        """Return whether a token continues a word: by WordPiece's prefix, or by the spaces around it."""
        if getattr(self.tokenizer.backend_tokenizer.model, "continuing_subword_prefix", None):
            return len(token) != end - start
        return start > 0 and " " not in text[start - 1 : start + 1]

    def _tagged(self, token: _Token) -> dict[str, Any]:
        best = int(token.scores.argmax())
        return {
            "entity": self.id2label[best], "score": float(token.scores[best]), "index": token.index,
            "word": token.word, "start": token.start, "end": token.end,
        }  # fmt: skip

    def _word(self, parts: Sequence[_Token], strategy: str) -> _Token:
        if strategy == "average":
            scores = np.mean([part.scores for part in parts], axis=0)
        else:
            scores = parts[0].scores if strategy == "first" else max((p.scores for p in parts), key=np.max)
        text = self.tokenizer.convert_tokens_to_string([part.word for part in parts])
        return _Token(scores, text, parts[0].start, parts[-1].end, parts[0].index, False)

    def _entity(self, group: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        words, score = [each["word"] for each in group], float(np.mean([each["score"] for each in group]))
        found = {"entity_group": group[0]["entity"].split("-", 1)[-1], "score": score}
        found["word"] = self.tokenizer.convert_tokens_to_string(words)
        return found | {"start": group[0]["start"], "end": group[-1]["end"]}


def _joined(words: Iterable[str], name: str) -> str:
    check_words(name, words)
    return " ".join(words)


def _runs(items: Iterable[Item], continues: Callable[[Item, Item], bool]) -> list[list[Item]]:
    """Return neighbouring items in lists; `continues(last, item)` says whether an item joins the last one's list."""
    runs: list[list[Item]] = []
    for item in items:
        if runs and continues(runs[-1][-1], item):
            runs[-1].append(item)
        else:
            runs.append([item])
    return runs


def _is_same_entity(last: Mapping[str, Any], each: Mapping[str, Any]) -> bool:
    begins, kind = _kind(each["entity"])
    return not begins and kind == _kind(last["entity"])[1]


def _kind(entity: str) -> tuple[bool, str]:
    """Return whether a tag begins an entity, and its kind; a tag without B- or I- continues one."""
    if entity.startswith(("B-", "I-")):
        return entity[0] == "B", entity[2:]
    return False, entity


LONGEST_WINDOW = 384  # tokens, as in the training of models on SQuAD


@dataclass(frozen=True)
class AnsweringOptions(CallOptions):
    """Options of a call, in addition to `CallOptions`; by default a long context is read in windows.

    Attributes:
        truncation: "chunk" by default.
        max_length: number of tokens of a window, 384 by default.
        stride: number of tokens that two windows share, by default 128, or half a window.
        top_k: number of answers; a single answer is returned without a list.
        max_answer_len: maximum number of tokens of an answer.
        handle_impossible_answer: whether "" may be the answer.
        align_to_words: whether answers consist of whole words.
    """

    truncation: bool | str = "chunk"
    top_k: int = 1
    max_answer_len: int = 15
    handle_impossible_answer: bool = False
    align_to_words: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("top_k", self.top_k)
        check_count("max_answer_len", self.max_answer_len)
        checks.boolean("handle_impossible_answer", self.handle_impossible_answer)
        checks.boolean("align_to_words", self.align_to_words)


@dataclass(frozen=True)
class _Spans:
    """The best spans of one window."""

    scores: np.ndarray  # sums of start and end score, (spans,)
    characters: list[tuple[int, int]]  # characters of the spans, (spans, 2)
    starts: float  # log-sum-exp of the scores over the tokens that may start and end answers
    ends: float  # log-sum-exp of the scores over the tokens that may start and end answers
    none: float | None  # the sum of scores of the no-answer token [CLS]; None without such a token


class QuestionAnsweringPipeline(Pipeline):
    """Answer each question from its context: {"score", "start", "end", "answer"}.

    An input is {"question", "context"}; a single one may be given as question=..., context=.... start and end are
    characters of the context. A span's score is the probability of its start times that of its end, over all tokens of
    the context and the no-answer token [CLS], in all windows of the context: windows without the answer do not compete
    with the one that has it. (transformers normalises each window separately; with one window the scores are equal.)
    Scores of spans with the same text are added. The answer "" has the lowest score of [CLS] in any window (Devlin et
    al. 2019, arXiv:1810.04805). Options: `AnsweringOptions`.
    """

    task = "question-answering"
    options_class = AnsweringOptions
    model_classes = (auto.AutoModelForQuestionAnswering,)
    _head = "question answering head"
    _most_shared = 128
    _keys = "question", "context"

    def __call__(
        self, inputs: Any = None, *, question: str | None = None, context: str | None = None, **options: Any
    ) -> Any:
        if inputs is None:
            inputs = {"question": question, "context": context}
        elif question is not None or context is not None:
            raise TypeError("inputs and question or context are given, expected inputs alone, or these two")
        return self._call(inputs, self._options(options))

    def _cutting(self, options: CallOptions) -> Cutting:
        cutting = super()._cutting(options)
        if options.max_length is not None:
            return cutting
        longest = min(LONGEST_WINDOW, cutting.max_length or LONGEST_WINDOW)
        return Cutting(cutting.truncation, longest, cutting.stride, cutting.most_shared)

    def _texts(self, item: object, name: str, options: AnsweringOptions) -> list[Text]:
        question, context = self._pair(item, name)
        if not question.strip() or not context.strip():
            empty = "context" if question.strip() else "question"
            raise ValueError(f"{name}[{empty!r}] is empty, expected a text")
        if self.tokenizer.padding_side == "right":
            return [Text(question, context, "only_second")]
        return [Text(context, question, "only_first")]  # as in the training of models that pad on the left

    def _read(self, windows: Sequence[Window], arrays: Arrays, options: AnsweringOptions) -> Sequence[Any]:
        out = self.model(**arrays)
        starts, ends = kernels.to_host(out.start_logits), kernels.to_host(out.end_logits)
        return [self._spans(window, starts[row], ends[row], options) for row, window in enumerate(windows)]

    def _spans(self, window: Window, starts: np.ndarray, ends: np.ndarray, options: AnsweringOptions) -> _Spans:
        content = window.content
        whole = [column for column, number in enumerate(window.ids) if number == self.tokenizer.cls_token_id]
        allowed = np.concatenate([content, np.array(whole, np.int64)])
        starts, ends = starts.astype(np.float64), ends.astype(np.float64)
        none = float(starts[whole[0]] + ends[whole[0]]) if whole else None
        # Aligned to words, several spans may become one.
        count = 2 * options.top_k + 10 if options.align_to_words else options.top_k
        rows, columns, scores = _best_spans(starts[content], ends[content], options.max_answer_len, count)
        spans = zip(content[rows].tolist(), content[columns].tolist(), strict=True)
        characters = [_characters(window, start, end, options.align_to_words) for start, end in spans]
        return _Spans(scores, characters, _log_sum_exp(starts[allowed]), _log_sum_exp(ends[allowed]), none)

    def _answer(self, item: Mapping[str, str], name: str, kept: list[list[Any]], options: AnsweringOptions) -> Answers:
        windows: Sequence[_Spans] = kept[0]
        total = sum(_log_sum_exp(np.array([getattr(each, side) for each in windows])) for side in ("starts", "ends"))
        found: dict[str, dict[str, Any]] = {}
        for window in windows:
            for score, (start, end) in zip(np.exp(window.scores - total).tolist(), window.characters, strict=True):
                text = item["context"][start:end]
                entry = found.setdefault(text.lower(), {"score": 0.0, "start": start, "end": end, "answer": text})
                entry["score"] += score
        answers = list(found.values())
        nothing = [window.none for window in windows if window.none is not None]
        if options.handle_impossible_answer and nothing:
            answers.append({"score": float(np.exp(min(nothing) - total)), "start": 0, "end": 0, "answer": ""})
        if not answers:  # no token of the context has visible characters
            raise ValueError(f"{name}['context'] is empty, expected a text")
        answers.sort(key=lambda answer: -answer["score"])
        return answers[0] if options.top_k == 1 else answers[: options.top_k]


def _best_spans(starts: np.ndarray, ends: np.ndarray, longest: int, count: int) -> tuple[np.ndarray, ...]:
    """Return first token, last token and score of the `count` best spans of at most `longest` tokens, best first."""
    lengths = range(min(longest, len(starts)))
    sums = [starts[: len(starts) - more] + ends[more:] for more in lengths]
    if not sums:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)
    scores = np.concatenate(sums)
    first = np.concatenate([np.arange(len(each)) for each in sums])
    last = first + np.repeat(np.arange(len(sums)), [len(each) for each in sums])
    best = np.argpartition(-scores, count)[:count] if len(scores) > count else np.arange(len(scores))
    best = best[np.lexsort((last[best], first[best], -scores[best]))]
    return first[best], last[best], scores[best]


def _characters(window: Window, start: int, end: int, align_to_words: bool) -> tuple[int, int]:
    """Return the characters of the context from token `start` to token `end`, extended to whole words if asked."""
    first, last = window.encoding.offsets[start], window.encoding.offsets[end]
    if align_to_words:
        words = window.encoding.word_ids
        spans = [window.encoding.word_to_chars(words[column], window.part) for column in (start, end)]
        first, last = (span or offset for span, offset in zip(spans, (first, last), strict=True))
    return first[0] + window.shift, last[1] + window.shift


def _log_sum_exp(scores: np.ndarray) -> float:
    highest = scores.max()
    return float(highest + np.log(np.exp(scores - highest).sum()))

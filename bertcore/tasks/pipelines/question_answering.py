"""Answers to questions: spans of a text of any length."""

from __future__ import annotations

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

LONGEST_WINDOW = 384  # tokens, as models were trained on SQuAD


@dataclass(frozen=True)
class AnsweringOptions(CallOptions):
    """What a call may say, beside `CallOptions`; a context that is too long is read in windows unless truncation says
    otherwise.

    Attributes:
        truncation: "chunk" by default.
        max_length: the tokens of a window, 384 by default.
        stride: by default 128, or half a window.
        top_k: how many answers; with 1 the answer stands alone, else in a list.
        max_answer_len: the most tokens of an answer.
        handle_impossible_answer: whether "" may be the answer.
        align_to_words: whether answers are made of whole words.
    """

    truncation: Any = "chunk"
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
    """What one window has to say.

    Attributes:
        scores: of its best spans, start's and end's together, (spans,).
        characters: of these spans, (spans, 2).
        starts, ends: the logarithm of the sum of exp(score) over the tokens that are allowed to start and end answers.
        none: the scores of the token that stands for no answer, together; None if there is none.
    """

    scores: np.ndarray
    characters: list[tuple[int, int]]
    starts: float
    ends: float
    none: float | None


class QuestionAnsweringPipeline(Pipeline):
    """The answer to each question, in the text it is asked about: {"score", "start", "end", "answer"}.

    An input is {"question", "context"}; one may be given as question=..., context=.... start and end are characters of
    the context. A span's score is the probability that it starts where it does times that it ends where it does, over
    all tokens of the context and the one that stands for no answer ([CLS]), in all windows of the context: windows
    without the answer do not compete with the one that has it. (transformers took each window by itself; with one
    window the scores are the same.) What several spans with the same text have is added. Without an answer in the text
    "" has the least score of [CLS] in any window (Devlin et al. 2019, arXiv:1810.04805). Options: `AnsweringOptions`.
    """

    task = "question-answering"
    options_class = AnsweringOptions
    _model_class = "AutoModelForQuestionAnswering"
    _head = "question answering's head"
    _most_shared = 128

    def __call__(self, inputs: Any = None, *, question: Any = None, context: Any = None, **options: Any) -> Any:
        """Answer one question, a list of them, or those of an iterator; see the class."""
        if inputs is None:
            inputs = {"question": question, "context": context}
        elif question is not None or context is not None:
            raise TypeError("inputs and question or context are given, expected inputs alone, or these two")
        return self._call(inputs, self._options(options))

    def _is_one(self, inputs: Any) -> bool:
        return isinstance(inputs, str | Mapping)

    def _expected(self) -> str:
        return '{"question": ..., "context": ...}'

    def _cutting(self, options: CallOptions) -> Cutting:
        cutting = super()._cutting(options)
        if options.max_length is not None:
            return cutting
        longest = min(LONGEST_WINDOW, cutting.max_length or LONGEST_WINDOW)
        return Cutting(cutting.truncation, longest, cutting.stride, cutting.most_shared)

    def _texts(self, item: Any, name: str, options: Any) -> list[Text]:
        if not isinstance(item, Mapping):
            raise TypeError(f"{name} is {type(item).__name__}, expected {self._expected()}")
        if set(item) != {"question", "context"}:
            raise ValueError(f"{name} has the keys {', '.join(map(repr, item))}, expected 'question' and 'context'")
        question, context = (checked_text(f"{name}[{key!r}]", item[key]) for key in ("question", "context"))
        if not question.strip() or not context.strip():
            empty = "context" if question.strip() else "question"
            raise ValueError(f"{name}[{empty!r}] is empty, expected a text")
        if self.tokenizer.padding_side == "right":
            return [Text(question, context, "only_second")]
        return [Text(context, question, "only_first")]  # as models that pad on the left were trained

    def _read(self, windows: Sequence[Window], arrays: Mapping[str, np.ndarray], options: Any) -> Sequence[Any]:
        out = self.model(**arrays)
        starts, ends = kernels.to_host(out.start_logits), kernels.to_host(out.end_logits)
        return [self._spans(window, starts[row], ends[row], options) for row, window in enumerate(windows)]

    def _spans(self, window: Window, starts: np.ndarray, ends: np.ndarray, options: Any) -> _Spans:
        content = window.content
        whole = [column for column, number in enumerate(window.ids) if number == self.tokenizer.cls_token_id]
        allowed = np.concatenate([content, np.array(whole, np.int64)])
        starts, ends = starts.astype(np.float64), ends.astype(np.float64)
        none = float(starts[whole[0]] + ends[whole[0]]) if whole else None
        # Aligning to words makes some spans one.
        count = 2 * options.top_k + 10 if options.align_to_words else options.top_k
        rows, columns, scores = _best_spans(starts[content], ends[content], options.max_answer_len, count)
        spans = zip(content[rows].tolist(), content[columns].tolist(), strict=True)
        characters = [_characters(window, start, end, options.align_to_words) for start, end in spans]
        return _Spans(scores, characters, _log_sum_exp(starts[allowed]), _log_sum_exp(ends[allowed]), none)

    def _answer(self, item: Any, name: str, kept: list[list[Any]], options: Any) -> Any:
        windows: Sequence[_Spans] = kept[0]
        total = sum(_log_sum_exp(np.array([getattr(each, side) for each in windows])) for side in ("starts", "ends"))
        found: dict[str, dict[str, Any]] = {}
        for window in windows:
            for score, (start, end) in zip(np.exp(window.scores - total).tolist(), window.characters, strict=True):
                text = item["context"][start:end]
                if text.lower() in found:
                    found[text.lower()]["score"] += score
                else:
                    found[text.lower()] = {"score": score, "start": start, "end": end, "answer": text}
        answers = list(found.values())
        nothing = [window.none for window in windows if window.none is not None]
        if options.handle_impossible_answer and nothing:
            answers.append({"score": float(np.exp(min(nothing) - total)), "start": 0, "end": 0, "answer": ""})
        if not answers:  # no token of the context stands for characters that can be seen
            raise ValueError(f"{name}['context'] is empty, expected a text")
        answers.sort(key=lambda answer: -answer["score"])
        return answers[0] if options.top_k == 1 else answers[: options.top_k]


def _best_spans(
    starts: np.ndarray, ends: np.ndarray, longest: int, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The first and the last token of the `count` spans with the highest sums of scores, and these, the best first.

    All spans of at most `longest` tokens are tried, a length at a time.
    """
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
    """The characters of the context from token `start` to token `end`, of whole words if asked."""
    first, last = window.encoding.offsets[start], window.encoding.offsets[end]
    if align_to_words:
        words = window.encoding.word_ids
        spans = [window.encoding.word_to_chars(words[column], window.part) for column in (start, end)]
        first, last = (span or offset for span, offset in zip(spans, (first, last), strict=True))
    return first[0] + window.shift, last[1] + window.shift


def _log_sum_exp(scores: np.ndarray) -> float:
    highest = scores.max()
    return float(highest + np.log(np.exp(scores - highest).sum()))

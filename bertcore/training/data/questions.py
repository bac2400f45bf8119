"""Questions about texts: windows of a long text with the place of the answer, and answers read from scores."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from bertcore.training.data.files import Rows, text_of, wrong_record
from bertcore.training.data.mentions import check_side
from bertcore.training.metrics import answer_scores

AT_ONCE = 64  # questions that are tokenised together
BEST = 20  # the best starts and ends, which are tried in all pairs
Examples = Sequence[Mapping[str, Any]]
Spans = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Questions:
    """Questions with texts that answer them, in SQuAD's form (Rajpurkar et al. 2016, arXiv:1606.05250).

    Attributes:
        question, context, answers: the names of the columns. `answers` has {"text": [...], "answer_start": [...]}:
            right answers, and the character of the context where each starts; empty if the text has no answer.
        stride: the number of tokens that consecutive windows of a long text share.
    """

    question: str = "question"
    context: str = "context"
    answers: str = "answers"
    stride: int = 128

    model_class = "AutoModelForQuestionAnswering"

    def examples(self, records: Rows, tokenizer: Any, *, max_length: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the windows of each question, of at most `max_length` tokens (by default the tokenizer's limit).

        start_positions and end_positions are the columns of the first answer's first and last token, or of [CLS] if the
        window does not hold all of the answer. For `best_answers`, overflow_to_sample_mapping is the question's number,
        and offset_mapping has the characters of each token in the context, (0, 0) for other tokens.

        Raises:
            MalformedRecord (a ValueError): for a record that lacks a column, or whose answer is not at its position.
            ValueError: for a tokenizer that pads on the left, which would shift the columns.
        """
        check_side(tokenizer)
        numbered = enumerate(records)
        while some := list(islice(numbered, AT_ONCE)):
            columns = (self.question, self.context)
            rows = [[text_of(record, number, it, may_be_empty=False) for it in columns] for number, record in some]
            questions, contexts = [question.strip() for question, _ in rows], [context for _, context in rows]
            windows = tokenizer(
                questions,
                contexts,
                truncation="only_second",
                max_length=max_length,
                stride=self.stride,
                return_overflowing_tokens=True,
                return_offsets_mapping=True,
            )
            for row, sample in enumerate(windows["overflow_to_sample_mapping"]):
                number, record = some[sample]
                made = {name: rows[row] for name, rows in windows.items()}
                inside = [part == 1 for part in windows.sequence_ids(row)]
                offsets = [span if here else (0, 0) for span, here in zip(made["offset_mapping"], inside, strict=True)]
                ids, first = made["input_ids"], tokenizer.cls_token_id
                none = ids.index(first) if first in ids else 0
                start, end = _place(offsets, inside, self._answer(record, number)) or (none, none)
                yield made | {
                    "offset_mapping": offsets,
                    "overflow_to_sample_mapping": number,
                    "start_positions": start,
                    "end_positions": end,
                }

    def _answer(self, record: Mapping[str, Any], number: int) -> tuple[int, int] | None:
        if not (answers := self._answers(record, number)):
            return None
        first, start = answers[0]
        found = record[self.context][start : start + len(first)]
        if not first or start < 0 or found != first:
            raise wrong_record(record, number, f"the answer {first!r:.60} is not at {start}, the text is {found!r:.60}")
        return start, start + len(first)

    def _answers(self, record: Mapping[str, Any], number: int) -> list[tuple[str, int]]:
        answers = record.get(self.answers)
        try:
            found = list(zip(answers["text"], answers["answer_start"], strict=True))
            if all(isinstance(text, str) for text, _ in found) and not isinstance(answers["text"], str):
                return [(text, operator.index(start)) for text, start in found]
        except (KeyError, TypeError, IndexError, ValueError):
            pass
        problem = f'{self.answers!r} is {answers!r:.60}, expected {{"text": [...], "answer_start": [...]}}'
        raise wrong_record(record, number, problem)

    def references(self, record: Mapping[str, Any], number: int = 0) -> list[str]:
        """Return all right answers of a record. Raises MalformedRecord, naming its number, for another form."""
        return [text for text, _ in self._answers(record, number)]


def best_answers(
    records: Sequence[Mapping[str, Any]],
    windows: Sequence[Mapping[str, Any]],
    scores: tuple[Any, Any],
    *,
    context: str = "context",
    longest: int = 30,
) -> list[str]:
    """Return each record's answer: the span with the highest sum of start and end score, in any window.

    It is "" unless the span scores higher than the first token ([CLS]) of some window.

    Args:
        records: the source of `windows`.
        windows: of `Questions.examples`.
        scores: (start_logits, end_logits), (windows, length) each, at least as wide as the longest window.
        context: the name of the text column.
        longest: the most tokens of an answer.
    """
    best = [(-np.inf, "")] * len(records)
    none = np.full(len(records), np.inf)
    for window, starts, ends in zip(windows, *scores, strict=True):
        sample, offsets = window["overflow_to_sample_mapping"], window["offset_mapping"]
        outside = next((column for column, (first, last) in enumerate(offsets) if first == last), None)
        none[sample] = min(none[sample], -np.inf if outside is None else float(starts[outside] + ends[outside]))
        found = _best_span(starts[: len(offsets)], ends[: len(offsets)], offsets, longest)
        if found and found[0] > best[sample][0]:
            best[sample] = found[0], records[sample][context][found[1] : found[2]]
    return [text if score > nothing else "" for (score, text), nothing in zip(best, none, strict=True)]


def answer_metrics(records: Examples, windows: Examples, questions: Questions | None = None) -> Callable[..., Any]:
    """Return a metric for the scores of `windows`, made from `records`: exact match and F1 of the answers."""
    questions = questions or Questions()
    references = [questions.references(record, number) for number, record in enumerate(records)]

    def compute(prediction: tuple[Any, Any]) -> dict[str, float]:
        return answer_scores(best_answers(records, windows, prediction[0], context=questions.context), references)

    return compute


def _place(offsets: Spans, inside: Sequence[bool], answer: tuple[int, int] | None) -> tuple[int, int] | None:
    """Return the first and the last token of an answer; None if the window does not hold all of it."""
    if answer is None or True not in inside:
        return None
    first, last = inside.index(True), len(inside) - 1 - inside[::-1].index(True)
    if offsets[first][0] > answer[0] or offsets[last][1] < answer[1]:
        return None
    start = max(column for column in range(first, last + 1) if offsets[column][0] <= answer[0])
    end = min(column for column in range(first, last + 1) if offsets[column][1] >= answer[1])
    return (start, end) if start <= end else None


def _best_span(starts: np.ndarray, ends: np.ndarray, offsets: Spans, longest: int) -> tuple[float, int, int] | None:
    """Return (score, first character, last + 1) of the best span of at most `longest` tokens."""
    tokens = np.array([column for column, (first, last) in enumerate(offsets) if last > first], int)
    pairs = [
        (float(starts[start] + ends[end]), offsets[start][0], offsets[end][1])
        for start in tokens[np.argsort(-starts[tokens], kind="stable")[:BEST]]
        for end in tokens[np.argsort(-ends[tokens], kind="stable")[:BEST]]
        if start <= end < start + longest
    ]
    return max(pairs, default=None)

"""Answers to questions, held to their definition: probabilities over the allowed tokens of all windows."""

import numpy as np
import pytest

from bertcore import pipeline
from tests.refusals import refuses
from tests.tasks.pipelines.folders import LONGEST

QUESTION = "is paris the capital ?"
SHORT = "the cat sat on an mat . Paris is the capital of france ."
LONG = " ".join([SHORT, "upper catmat zq .", SHORT.replace("capital", "mat")] * 4)


@pytest.fixture(scope="module")
def answer(answering_folder):
    return pipeline("question-answering", answering_folder)


def definition(answer, question, context, *, longest, length=LONGEST, stride=None, words=True):
    """{lower-case answer: (probability, start, end)} of every span, and that of no answer: by loops over all spans."""
    tokenizer = answer.tokenizer
    first = tokenizer(question)["input_ids"]
    encoded = tokenizer(context, add_special_tokens=False, return_offsets_mapping=True)
    ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
    room = length - len(first) - 1
    stride = min(128, room // 2) if stride is None else stride
    windows = [slice(start, start + room) for start in range(0, max(1, len(ids) - stride), room - stride)]
    scored = []
    for window in windows:
        row = [*first, *ids[window], tokenizer.sep_token_id]
        out = answer.model([row], token_type_ids=[[0] * len(first) + [1] * (len(row) - len(first))])
        scored.append((out.start_logits[0].astype(np.float64), out.end_logits[0].astype(np.float64)))
    allowed = [[0, *range(len(first), len(start) - 1)] for start, _ in scored]
    totals = [sum(np.exp(row[side][a]).sum() for row, a in zip(scored, allowed, strict=True)) for side in (0, 1)]
    spans, nothing = {}, []
    for window, (start, end) in zip(windows, scored, strict=True):
        p_start, p_end = np.exp(start) / totals[0], np.exp(end) / totals[1]
        nothing.append(p_start[0] * p_end[0])
        count = len(ids[window])
        for i in range(count):
            for j in range(i, min(count, i + longest)):
                a, b = offsets[window.start + i][0], offsets[window.start + j][1]
                if words:
                    word_a, word_b = (encoded.token_to_word(window.start + k) for k in (i, j))
                    a, b = encoded.word_to_chars(word_a).start, encoded.word_to_chars(word_b).end
                key = context[a:b].lower()
                value = p_start[len(first) + i] * p_end[len(first) + j]
                spans.setdefault(key, []).append((value, a, b))
    return spans, min(nothing)


@pytest.mark.parametrize("context", [SHORT, LONG])
@pytest.mark.parametrize("longest", [1, 3, 15])
def test_best_spans(answer, context, longest):
    spans, _ = definition(answer, QUESTION, context, longest=longest, words=False)
    single = {key: values[0] for key, values in spans.items() if len(values) == 1}
    found = answer({"question": QUESTION, "context": context}, top_k=400, max_answer_len=longest, align_to_words=False)
    assert len(found) > 3 and [each["score"] for each in found] == sorted((e["score"] for e in found), reverse=True)
    for each in found:
        assert context[each["start"] : each["end"]] == each["answer"]
        values = spans[each["answer"].lower()]
        assert each["score"] <= sum(value for value, _, _ in values) * (1 + 1e-5)
        if each["answer"].lower() in single:
            assert each["score"] == pytest.approx(values[0][0], rel=1e-4)
            assert (each["start"], each["end"]) == values[0][1:]
    if context == SHORT:  # all spans are among them, so that the scores of equal texts are sums
        assert {each["answer"].lower() for each in found} == set(spans)
        for each in found:
            total = sum(value for value, _, _ in spans[each["answer"].lower()])
            assert each["score"] == pytest.approx(total, rel=1e-4)


def test_answers_of_whole_words(answer):
    context = "catmat unknownword sat"
    spans, _ = definition(answer, QUESTION, context, longest=15)
    found = answer(question=QUESTION, context=context, top_k=150)
    assert {each["answer"] for each in found} == set(spans)
    for each in found:
        total = sum(value for value, _, _ in spans[each["answer"]])
        assert each["score"] == pytest.approx(total, rel=1e-4)


@pytest.mark.parametrize("context", [SHORT, LONG])
def test_no_answer(answer, context):
    _, nothing = definition(answer, QUESTION, context, longest=15)
    found = answer({"question": QUESTION, "context": context}, top_k=1000, handle_impossible_answer=True)
    (none,) = [each for each in found if each["answer"] == ""]
    assert none == {"score": pytest.approx(nothing, rel=1e-4), "start": 0, "end": 0, "answer": ""}
    assert all(each["answer"] for each in answer({"question": QUESTION, "context": context}, top_k=1000))


def test_forms(answer):
    one = {"question": QUESTION, "context": SHORT}
    best = answer(one)
    assert list(best) == ["score", "start", "end", "answer"]
    assert answer(**one) == best and answer([one, one]) == [best, best] and list(answer(iter([one]))) == [best]
    assert answer(one, top_k=3)[0] == best and len(answer(one, top_k=3)) == 3


def test_windows_do_not_change_what_one_window_holds(answer):
    one = {"question": QUESTION, "context": SHORT}
    whole = answer(one, top_k=5)
    assert answer(one, top_k=5, truncation="error") == whole
    refuses(ValueError, "inputs has more than the 20 tokens", answer, one, max_length=20, truncation="error")


@pytest.mark.parametrize(("inputs", "options", "error", "message"), [
    ("is it ?", {}, TypeError, "inputs is str, expected"),
    ({"question": "a"}, {}, ValueError, "inputs has the keys 'question', expected 'question' and 'context'"),
    ({"question": "a", "context": " "}, {}, ValueError, r"inputs\['context'\] is empty"),
    ({"question": "", "context": "a"}, {}, ValueError, r"inputs\['question'\] is empty"),
    ([{"question": "a", "context": 3}], {}, TypeError, r"inputs\[0\]\['context'\] is int"),
    ({"question": "a", "context": "b"}, {"max_answer_len": 0}, ValueError, "max_answer_len is 0"),
    ({"question": "a", "context": "b"}, {"handle_impossible_answer": 1}, TypeError, "handle_impossible_answer is"),
    ({"question": "a " * 50, "context": SHORT}, {}, ValueError, "would have to be cut"),
])  # fmt: skip
def test_bad_calls(answer, inputs, options, error, message):
    refuses(error, message, answer, inputs, **options)


@pytest.mark.parametrize("top_k", [1, 2])
def test_a_context_without_tokens(answer, top_k):
    pairs = [{"question": "a", "context": "the cat"}, {"question": "a", "context": "\u200b\x01"}]
    refuses(ValueError, r"inputs\[1\]\['context'\] is empty", answer, pairs, top_k=top_k)
    assert answer(pairs[1], handle_impossible_answer=True)["answer"] == ""
